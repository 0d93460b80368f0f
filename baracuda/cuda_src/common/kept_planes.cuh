// Sets of planes that stay on chip between their statistics and their elements, so that they are
// read once: for functors of Planes whose statistics are not given.
//
// A cluster of blocks takes one set after the other. Parts of planes lie in the shared memory of
// its blocks, each with the warp that reads it, leaves its moments and computes its elements; so no
// part waits for another. Each block joins the moments of all. As soon as a part is written that of
// the next set is on its way to its place.
#pragma once
#include "bulk.cuh"
#include "cluster.cuh"
#include "plane_moments.cuh"
#include "plane_sets.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    class F, class T, int GIVEN, bool ACROSS, int CLUSTER, int HELD, Access ACCESS, bool ADD,
    int HOW = 0, class C = T>
struct KeptPlanes {
  using A = Acc<T>;
  using Of = PlaneSets<F, T, GIVEN, ACROSS, HOW, 1, C>;
  static constexpr int RESIDENT = 1, V = 16 / sizeof(T), IN = F::inputs, M = F::sums;
  // Elements of a part.
  static constexpr int PART = 32 * HELD * V;
  static_assert(F::reads == IN && !F::given && ACCESS != STEPS, "see above");

  struct Pointers : Operands<T, IN, 1>, Of::Pointers {};
  struct Args : Pointers, F, Of::Numbers {
    i64 step[IN + 1];           // from plane to plane of a set
    i32 sets, turns, units, n;  // turns: sets of a cluster; units: parts of a set; n: of a plane
    Extent<u32> parts, share;   // of a plane, of a block
    Walk<0, IN + 1, i64> walk;
  };

  // In shared memory, for each part of a block: its elements, the coefficients of a plane, a
  // barrier and moments.
  struct Room {
    T* elements;
    A *coefs, *moments;
    u64* barriers;

    DEVICE Room(void* memory, u32 parts) {
      elements = static_cast<T*>(memory);
      coefs = reinterpret_cast<A*>(elements + parts * (IN * PART));
      barriers = reinterpret_cast<u64*>(coefs + parts * 4);
      moments = reinterpret_cast<A*>(barriers + parts);
    }
    DEVICE T* element(u32 slot, int k) const { return elements + (slot * IN + k) * PART; }
  };

  // A part: its plane of a set, where it begins there, and how long it is.
  struct Place {
    u32 line;
    i32 first, count;
  };
  static DEVICE Place place(const Args& args, u32 unit) {
    const u32 line = args.parts.divide(unit);
    const i32 first = i32(unit - line * args.parts.size) * PART, left = args.n - first;
    return {line, first, left < PART ? left : PART};
  }

  // The parts of all blocks, and where their moments are.
  struct Parts {
    const Args& args;
    A* moments;

    DEVICE u32 number() const { return args.units; }
    DEVICE Part<A> part(u32 unit) const {
      const Place at = place(args, unit);
      const u32 block = args.share.divide(unit);
      A* there = moments;
      if constexpr (CLUSTER > 1) there = of_block(there, block);
      return {there + (unit - block * args.share.size), A(at.count), i32(at.line)};
    }
    DEVICE A moment(const Part<A>& p, int k) const { return p.at[k * args.share.size]; }
  };

  // Asks for a part, which a warp does together.
  static DEVICE void ask(
      const Args& args, const Room& room, const i64 (&set)[IN + 1], u32 slot, const Place& at) {
    const int lane = threadIdx.x % 32;
    if constexpr (ACCESS == VECTORS) {
      if (lane) return;
      const u32 bytes = at.count * u32(sizeof(T));
      bulk_expect(room.barriers + slot, IN * bytes);
      UNROLL for (int k = 0; k < IN; ++k) {
        const T* from = args.in[k] + set[k] + at.line * args.step[k] + at.first;
        bulk_copy(room.element(slot, k), from, bytes, room.barriers + slot);
      }
    } else {
      UNROLL for (int k = 0; k < IN; ++k) {
        const T* from = args.in[k] + set[k] + at.line * args.step[k] + at.first;
        T* to = room.element(slot, k);
        _Pragma("unroll 4") for (i32 e = lane; e < at.count; e += 32) to[e] = from[e];
      }
      __syncwarp();
    }
  }

  static DEVICE void measure(const Args& args, const Room& room, u32 slot, const Place& at) {
    const int lane = threadIdx.x % 32;
    Vec<T, V> held[IN][HELD];
    UNROLL for (int k = 0; k < IN; ++k) {
      UNROLL for (int h = 0; h < HELD; ++h) {
        const i32 e = (lane + h * 32) * V;
        held[k][h] = {};
        if (e < at.count) held[k][h] = load<V>(room.element(slot, k) + e);
      }
    }
    A found[5];
    part_moments<true>(held, lane, 32, at.count, found);
    if (lane) return;
    UNROLL for (int k = 0; k < M; ++k) room.moments[k * args.share.size + slot] = found[k];
  }

  static DEVICE void finish(
      const Args& args, const Room& room, const i64 (&set)[IN + 1], u32 slot, const Place& at,
      u32 line) {
    const i32 own = threadIdx.x % 32 * V, left = at.count - own;
    const Coefficients<A> c = coefficients(room.coefs, line);
    T* to = args.out[0] + set[IN] + at.line * args.step[IN] + at.first + own;
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = h * 32 * V;
      if (e >= left) continue;
      A x[IN][V], y[V];
      UNROLL for (int k = 0; k < IN; ++k) widen(load<V>(room.element(slot, k) + own + e), x[k]);
      UNROLL for (int i = 0; i < V; ++i) {
        A from[IN];
        UNROLL for (int k = 0; k < IN; ++k) from[k] = x[k][i];
        y[i] = F::finish(from, c);
      }
      put<ACCESS, ADD>(to, 1, e, left, y);
    }
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) f64 memory[];
    using Meet = typename Of::Meet;
    __shared__ Meet rooms;
    const F& f = args;
    int turn = 0;
    const Room room(memory, args.share.size);
    const Parts parts{args, room.moments};
    const u32 rank = CLUSTER > 1 ? blockIdx.x % CLUSTER : 0, warps = blockDim.x / 32;
    const u32 warp = threadIdx.x / 32, begin = rank * args.share.size;
    const u32 rest = begin < u32(args.units) ? args.units - begin : 0;
    const u32 mine = rest < args.share.size ? rest : args.share.size;
    // Planes that parts of this block are of, of which there are no more than threads; those of a
    // channel share their coefficients.
    const u32 line = ACROSS ? 0 : args.parts.divide(begin);
    const u32 last = ACROSS || !mine ? line : args.parts.divide(begin + mine - 1);
    const u32 lines = mine ? last - line + 1 : 0;
    i32 set = i32(blockIdx.x / CLUSTER) * args.turns;
    const i32 left = args.sets - set, end = left < args.turns ? args.sets : set + args.turns;

    i64 here[IN + 1];
    args.walk.template offsets<1>(i64(set), here);
    if constexpr (ACCESS == VECTORS) {
      if (threadIdx.x % 32 == 0) {
        for (u32 slot = warp; slot < mine; slot += warps) bulk_begin(room.barriers + slot);
        bulk_begun();
      }
      __syncwarp();
    }
    ROLLED for (u32 slot = warp; slot < mine; slot += warps) {
      ask(args, room, here, slot, place(args, begin + slot));
    }
    ROLLED for (u32 phase = 0; set < end; phase ^= 1) {
      // Parameters come while moments do.
      Channel<A> channel{};
      if (threadIdx.x < lines) channel = Of::channel_of(args, set, i32(line + threadIdx.x));
      ROLLED for (u32 slot = warp; slot < mine; slot += warps) {
        if constexpr (ACCESS == VECTORS) bulk_wait(room.barriers + slot, phase);
        measure(args, room, slot, place(args, begin + slot));
      }
      if constexpr (CLUSTER > 1) cluster_sync();
      else __syncthreads();
      const Joined<A> of = Of::template join<true>(args, parts, set, rooms, turn);
      if constexpr (Of::LEAVES && ACROSS) {
        if (rank == 0) Of::leave(args, of, set);
      }
      if constexpr (Of::LEAVES && !ACROSS) {
        Of::shares(args, parts, of.known, set, rank * warps, CLUSTER * warps);
      }
      if (threadIdx.x < lines) keep(room.coefs, threadIdx.x, f.settle(of.known, channel));
      __syncthreads();
      // Of the moments of others nothing is read from here on.
      if constexpr (CLUSTER > 1) cluster_leave();
      i64 next[IN + 1];
      const bool more = ++set < end;
      args.walk.template offsets<1>(i64(more ? set : 0), next);
      ROLLED for (u32 slot = warp; slot < mine; slot += warps) {
        const Place at = place(args, begin + slot);
        finish(args, room, here, slot, at, ACROSS ? 0 : at.line - line);
        __syncwarp();
        if (more) ask(args, room, next, slot, at);
      }
      UNROLL for (int k = 0; k <= IN; ++k) here[k] = next[k];
      if constexpr (CLUSTER > 1) cluster_wait();
    }
  }
};

}  // namespace baracuda
#endif
