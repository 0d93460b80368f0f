// Columns schedule: what `Rows` does along the last axis, along one with others behind it.
//
// Neighbouring threads own vectors of neighbouring columns, 2^log_lanes of them in a block; the
// axis is split over the block's rows of threads, whose states are joined on chip. A thread holds
// HELD elements of a column, or reads them AGAIN. Functors are those of common/rows.cuh with one
// stage, that leave nothing out and share nothing between rows. Of columns that are LOSSES each has
// a result, or its cotangent.
#pragma once
#include "index.cuh"
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// What columns with one result each have: where these lie, whether in the accumulate type, and how
// far apart: a cotangent may be one for all columns side by side.
template <bool> struct EachColumn {};
template <> struct EachColumn<true> {
  void* costs;
};
template <bool> struct ColumnsTogether {};
template <> struct ColumnsTogether<true> {
  u32 wide_loss;
  i32 apart;
};

template <class F, class T, int HELD, int WIDTH, bool AGAIN, bool ADD, bool LOSSES = false>
struct Columns {
  using A = Acc<T>;
  using State = typename F::State;
  using Known = typename F::Known;
  static constexpr int IN = F::inputs, OUT = F::outputs, K = IN + OUT, WALKED = K + LOSSES;
  static constexpr bool COSTS = LOSSES && OUT == 0;
  static constexpr int RESIDENT = 1;
  static_assert(F::stages == ONCE && F::loads == IN && !F::columns && !F::sums, "see above");

  struct Args : Operands<T, IN, OUT>, EachColumn<LOSSES>, F, ColumnsTogether<LOSSES> {
    i64 step[K];  // along the axis
    i32 n, inner, log_lanes, pad;
    Extent<u32> tiles;  // blocks beside each other
    Walk<0, WALKED, i64> walk;
  };

  struct Chunk {
    Vec<T, WIDTH> x[IN][HELD];
  };

  // The elements first, first + rows, ...; `end` is that of the axis, 0 where there is no column.
  static DEVICE void fetch(
      const Args& args, const i64 (&at)[WALKED], i32 first, i32 rows, i32 end, Chunk& chunk) {
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = first + h * rows;
      UNROLL for (int k = 0; k < IN; ++k) {
        chunk.x[k][h] = {};
        if (e < end) chunk.x[k][h] = load<WIDTH>(args.in[k] + at[k] + e * args.step[k]);
      }
    }
  }

  static DEVICE void take(
      const Args& args, const Chunk& chunk, int v, i32 first, i32 rows, i32 end, State& s) {
    const F& f = args;
    A x[IN][HELD], none[1][HELD];
    u32 keep = 0;
    UNROLL for (int h = 0; h < HELD; ++h) {
      UNROLL for (int k = 0; k < IN; ++k) x[k][h] = widen(chunk.x[k][h], v);
      keep |= u32(first + h * rows < end) << h;
    }
    f.template take<0>(s, Known{}, x, none, keep);
  }

  static DEVICE void finish(
      const Args& args, const i64 (&at)[WALKED], i32 first, i32 rows, i32 end, const Chunk& chunk,
      const Known* known) {
    const F& f = args;
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = first + h * rows;
      if (e >= end) continue;
      A y[OUT][WIDTH];
      UNROLL for (int v = 0; v < WIDTH; ++v) {
        A x[IN][1], none[1][1], one[OUT][1];
        UNROLL for (int k = 0; k < IN; ++k) x[k][0] = widen(chunk.x[k][h], v);
        f.finish(known[v], x, none, 1, one);
        UNROLL for (int k = 0; k < OUT; ++k) y[k][v] = one[k][0];
      }
      UNROLL for (int k = 0; k < OUT; ++k) {
        put<ADD>(args.out[k] + at[IN + k] + e * args.step[IN + k], y[k]);
      }
    }
  }

  // The result of a column, or what its cotangent makes of what is known.
  static DEVICE void settle_loss(const Args& args, i64 at, Known& known) {
    const F& f = args;
    T* const costs = static_cast<T*>(args.costs);
    if constexpr (COSTS) deliver_one(f.cost(known, 0), costs, at, args.wide_loss);
    else f.pull(known, 0, widened(costs, at, args.wide_loss));
  }

  static DEVICE void run(const Args& args) {
    const F& f = args;
    const int lanes = 1 << args.log_lanes, rows = int(blockDim.x) >> args.log_lanes;
    const int lane = int(threadIdx.x) & (lanes - 1), first = int(threadIdx.x) >> args.log_lanes;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 outer = args.tiles.divide(blockIdx.x);
    const i64 column = (i64(blockIdx.x - outer * args.tiles.size) * lanes + lane) * WIDTH;
    const i32 end = column < args.inner ? args.n : 0;
    i64 at[WALKED];
    args.walk.template offsets<1>(i64(outer), at);
    UNROLL for (int k = 0; k < K; ++k) at[k] += column;
    if constexpr (LOSSES) at[K] += column * args.apart;
    const auto join = [&](const State& a, const State& b) { return f.template join<0>(a, b); };

    // What each warp found out of each column, and then what is known of it.
    extern __shared__ __align__(16) f64 room[];
    State* found = reinterpret_cast<State*>(room);
    Known* known = reinterpret_cast<Known*>(found + warps * lanes * WIDTH);
    const auto leave = [&](int v, State s) {
      for (int by = lanes; by < 32; by *= 2) s = join(s, of_lane(s, by));
      if (threadIdx.x % 32 < lanes) found[(warp * lanes + lane) * WIDTH + v] = s;
    };

    Chunk chunk;
    fetch(args, at, first, rows, end, chunk);
    if constexpr (AGAIN) {
      State s[WIDTH];
      UNROLL for (int v = 0; v < WIDTH; ++v) s[v] = F::template start<0>();
      for (i32 e = first;;) {
        UNROLL for (int v = 0; v < WIDTH; ++v) take(args, chunk, v, e, rows, end, s[v]);
        e += HELD * rows;
        if (e >= end) break;
        fetch(args, at, e, rows, end, chunk);
      }
      UNROLL for (int v = 0; v < WIDTH; ++v) leave(v, s[v]);
    } else {
      UNROLL for (int v = 0; v < WIDTH; ++v) {
        State s = F::template start<0>();
        take(args, chunk, v, first, rows, end, s);
        leave(v, s);
        // One column after the other: all at once would not fit in the registers.
        __syncwarp();
      }
    }
    __syncthreads();
    const int part = threadIdx.x % 32;
    for (int c = warp; c < lanes * WIDTH; c += warps) {
      const State own = part < warps ? found[part * lanes * WIDTH + c] : F::template start<0>();
      const State s = join_lanes(own, 32, join);
      if (part == 0) {
        Known k{};
        f.template settle<0>(s, A(1) / A(args.n), k);
        // This thread's own column is the first of the block.
        if constexpr (LOSSES) {
          if (column + c < args.inner) settle_loss(args, at[K] + c * args.apart, k);
        }
        known[c] = k;
      }
    }
    __syncthreads();
    known += lane * WIDTH;
    if constexpr (COSTS) return;
    else if constexpr (AGAIN) {
      for (i32 e = first; e < end; e += HELD * rows) {
        fetch(args, at, e, rows, end, chunk);
        finish(args, at, e, rows, end, chunk, known);
      }
    } else {
      finish(args, at, first, rows, end, chunk, known);
    }
  }
};

}  // namespace baracuda
#endif
