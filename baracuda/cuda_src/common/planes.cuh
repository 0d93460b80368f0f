// Planes schedule: sets of the planes of [n, c, s] have statistics,
// by which each element is scaled.
//
// A functor F<A> takes `inputs` arrays, x the last. `LineMoments` and `ColumnMoments` leave moments
// of parts, `JoinMoments` joins those of a set in their order and makes four coefficients for each
// plane or channel of them, `MapPlanes` computes the elements; where the statistics are given and
// there is nothing to sum, from these.
#pragma once
#include "plane_moments.cuh"
#include "plane_sets.cuh"
#ifdef __CUDACC__

namespace baracuda {

// A block for each BESIDE sets, whose moments lie beside each other where they are several. Without
// MOMENTS the statistics are given and nothing is summed.
template <
    class F, class T, int GIVEN, bool ACROSS, bool MOMENTS, int HOW, int BESIDE, class C = T>
struct JoinMoments {
  using A = Acc<T>;
  using Of = PlaneSets<F, T, GIVEN, ACROSS, HOW, BESIDE, C>;
  static_assert(ACROSS || BESIDE == 1, "one set leaves shares of its planes");
  static constexpr int RESIDENT = 1;

  struct Pointers : Of::Pointers {
    const A* moments;
    A* coefs;
  };
  struct Args : Pointers, F, Of::Numbers {
    i64 units, base, step;  // moments of one kind, from set to set and from line to line
    i32 lines, full, tail, leading;  // of a set; elements of a part, and of those from `leading` on
    i32 by_lines, sets;              // whether lines are counted for that, or parts of each
    Extent<u32> parts;
  };

  // The parts of a set, and where their moments are.
  struct Parts {
    const Args& args;
    u32 set;

    DEVICE u32 number() const { return MOMENTS ? u32(args.lines) * args.parts.size : 0; }
    DEVICE Part<A> part(u32 item) const {
      const u32 line = args.parts.divide(item), rest = item - line * args.parts.size;
      const bool full = i32(args.by_lines ? line : rest) < args.leading;
      const i64 at = set * args.base + line * args.step + rest;
      return {args.moments + at, A(full ? args.full : args.tail), i32(line)};
    }
    DEVICE A moment(const Part<A>& p, int k) const { return p.at[k * args.units]; }
  };

  static DEVICE void run(const Args& args) {
    using Meet = typename Of::Meet;
    __shared__ Meet rooms;
    int turn = 0;
    const F& f = args;
    const u32 set = blockIdx.x * BESIDE + threadIdx.x % BESIDE;
    // Threads of none take part with another's, and leave nothing.
    const bool there = BESIDE == 1 || set < u32(args.sets);
    const Parts parts{args, there ? set : 0};
    const Joined<A> of = Of::template join<MOMENTS>(args, parts, parts.set, rooms, turn);
    if (!there) return;
    if constexpr (Of::LEAVES && ACROSS) Of::leave(args, of, set);
    if constexpr (Of::LEAVES && !ACROSS) Of::shares(args, parts, of.known, set, 0, blockDim.x / 32);
    const i32 channels = ACROSS ? 1 : args.channels;
    for (i32 c = threadIdx.x / BESIDE; c < channels; c += blockDim.x / BESIDE) {
      const Channel<A> channel = Of::channel_of(args, set, c);
      keep(args.coefs, i64(set) * channels + c, f.settle(of.known, channel));
    }
  }
};

// The elements of n lines of c planes. A thread has HELD vectors beside each other or, where the
// coefficients are those of all lines, some rounds of as many below each other (DOWN), the last
// first. SAME: a vector is within a plane.
// Blocks go backwards: what was read last before is in the L2 still. TOLD: nothing was, and these
// parameters are GIVEN.
template <
    class F, class T, int HELD, Access ACCESS, bool SAME, bool DOWN, bool ADD, bool TOLD = false,
    int GIVEN = 0, class C = T>
struct MapPlanes {
  using A = Acc<T>;
  using Of = PlaneSets<F, T, GIVEN, true, 0, 1, C>;
  static constexpr int V = 16 / sizeof(T), READS = F::reads, K = READS + 1;
  static constexpr int RESIDENT = ACCESS == VECTORS && SAME ? 4 : 2;

  struct Joined {
    const A* coefs;
  };
  struct Parameters : Of::Pointers, F, Of::Numbers {};
  struct Args : Operands<T, READS, 1>, Either<TOLD, Parameters, Joined>::type {
    i64 rows;  // of coefficients, from line to line
    i32 n, lines, items, rounds, apart;  // apart: threads below each other
    Extent<u32> vectors, plane;
    Walk<0, K, i64> walk, inside;
  };

  // Where the elements of a vector are.
  struct Place {
    i64 at[K];
    i64 apart[ACCESS == STEPS ? V : 1][K];

    DEVICE i64 of(int k, int i) const { return at[k] + (ACCESS == STEPS ? apart[i][k] : i); }
  };
  static DEVICE void place(const Args& args, i32 line, i32 e, Place& to) {
    args.walk.template offsets<1>(line < args.lines ? line : 0, to.at);
    if constexpr (ACCESS == STEPS) {
      UNROLL for (int i = 0; i < V; ++i) args.inside.template offsets<1>(e + i, to.apart[i]);
    } else {
      UNROLL for (int k = 0; k < K; ++k) to.at[k] += e;
    }
  }

  static DEVICE void fetch(
      const Args& args, i32 line, i32 e, const Place& at, Vec<T, V> (&x)[READS]) {
    UNROLL for (int k = 0; k < READS; ++k) {
      x[k] = {};
      if (line >= args.lines) continue;
      if constexpr (ACCESS == VECTORS) {
        x[k] = load<V>(args.in[k] + at.of(k, 0));
      } else {
        UNROLL for (int i = 0; i < V; ++i) {
          if (e + i < args.n) x[k].set(i, args.in[k][at.of(k, i)]);
        }
      }
    }
  }
  template <int ROWS>
  static DEVICE void know(const Args& args, i32 line, i32 e, Coefficients<A> (&c)[ROWS]) {
    [[maybe_unused]] const auto& f = static_cast<const typename Either<TOLD, F, Args>::type&>(args);
    UNROLL for (int i = 0; i < ROWS; ++i) {
      const i32 last = args.n - 1, place = e + i < last ? e + i : last;
      const i64 row = line * args.rows + args.plane.divide(u32(place));
      if constexpr (TOLD) c[i] = f.settle(
          Of::told(args, u32(row)), Of::channel_of(args, u32(row), 0));
      else c[i] = coefficients(args.coefs, row);
    }
  }
  template <int ROWS>
  static DEVICE void finish(
      const Args& args, i32 e, const Place& at, const Vec<T, V> (&x)[READS],
      const Coefficients<A> (&c)[ROWS]) {
    A y[V];
    UNROLL for (int i = 0; i < V; ++i) {
      A from[READS];
      UNROLL for (int k = 0; k < READS; ++k) from[k] = widen(x[k], i);
      y[i] = F::finish(from, c[SAME ? 0 : i]);
    }
    if constexpr (ACCESS == VECTORS) {
      put<ADD>(args.out[0] + at.of(K - 1, 0), y);
    } else {
      UNROLL for (int i = 0; i < V; ++i) {
        A one[1] = {y[i]};
        if (e + i < args.n) put<ADD>(args.out[0] + at.of(K - 1, i), one);
      }
    }
  }

  static DEVICE void run(const Args& args) {
    const u32 block = TOLD ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    Vec<T, V> x[HELD][READS];
    Place at[HELD];
    Coefficients<A> c[SAME ? 1 : V];
    if constexpr (DOWN) {
      const u32 item = block * blockDim.x + threadIdx.x;
      if (item >= u32(args.items)) return;
      const u32 row = args.vectors.divide(item);
      const i32 e = i32(item - row * args.vectors.size) * V;
      i32 round = args.rounds - 1, line = 0;
      const auto ask = [&] {
        line = (round * args.apart + i32(row)) * HELD;
        UNROLL for (int h = 0; h < HELD; ++h) {
          place(args, line + h, e, at[h]);
          fetch(args, line + h, e, at[h], x[h]);
        }
      };
      ask();
      // While the first elements are on their way.
      know(args, 0, e, c);
      ROLLED for (;;) {
        UNROLL for (int h = 0; h < HELD; ++h) {
          if (line + h < args.lines) finish(args, e, at[h], x[h], c);
        }
        if (--round < 0) break;
        ask();
      }
    } else {
      i32 e[HELD], line[HELD];
      UNROLL for (int h = 0; h < HELD; ++h) {
        const u32 item = (block * HELD + h) * blockDim.x + threadIdx.x;
        const u32 row = args.vectors.divide(item);
        line[h] = item < u32(args.items) ? i32(row) : args.lines;
        e[h] = i32(item - row * args.vectors.size) * V;
        place(args, line[h], e[h], at[h]);
        fetch(args, line[h], e[h], at[h], x[h]);
      }
      UNROLL for (int h = 0; h < HELD; ++h) {
        if (line[h] >= args.lines) break;
        know(args, line[h], e[h], c);
        finish(args, e[h], at[h], x[h], c);
      }
    }
  }
};

}  // namespace baracuda
#endif
