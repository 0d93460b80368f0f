// Channels schedule: elementwise with a parameter of each channel, whose gradient is a sum over all
// other axes.
//
// A functor F<A> maps x[inputs] to y[outputs]. The last input is the channel's parameter; the last
// output is added up over its channel where there are `sums` (one or none), else written as all
// others. What a channel has is walked over in items, of which a block takes a run. Where channels
// lie BESIDE each other, neighbouring threads own vectors of V of them, 2^log_lanes in a block, and
// the block's rows of threads take its items in turns; else a block has one channel, and an item is
// a vector of V of its elements. A block leaves one sum of each of its channels, which depends on
// its number alone; `SumRows` adds these up.
#pragma once
#include "reduce.cuh"
#include "row.cuh"
#include "sum_rows.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    template <class> class F, class T, int V, int DEPTH, bool BESIDE, int DIMS, class I, bool ADD>
struct Channels {
  using A = Acc<T>;
  using Functor = F<A>;
  static constexpr int IN = Functor::inputs - 1, SUMS = Functor::sums;
  static constexpr int OUT = Functor::outputs - SUMS, K = IN + OUT;
  // Channels of a thread.
  static constexpr int OWN = BESIDE ? V : 1;
  static constexpr int STEPS = (K + 2) / 2 * 2;
  static constexpr int RESIDENT = SUMS || sizeof(I) == 8 || DIMS == 0 || ADD ? 4 : 6;
  static constexpr int WARPS = 8;
  static_assert(SUMS <= 1, "one parameter");

  struct Args : Operands<T, IN + 1, OUT>,
                Beside<typename Either<(SUMS > 0), A, void>::type>,
                Functor {
    Extent<u32> fast;   // blocks of a run where BESIDE, else runs that lie beside each other,
    Extent<u32> tiles;  // with those of so many channels between them and the next
    i32 log_lanes, runs;
    I items, tail;      // of a channel, and the elements left over behind them
    I run, channels;    // items of a block
    I step[STEPS];      // from channel to channel, of the parameter too
    Walk<DIMS, K, I> walk;
  };

  template <int N> struct Batch {
    Vec<T, N> x[IN];
  };

  template <int N> static DEVICE void fetch(const Args& args, const I (&at)[K], Batch<N>& batch) {
    UNROLL for (int k = 0; k < IN; ++k) batch.x[k] = load<N>(args.in[k] + at[k]);
  }

  template <int N>
  static DEVICE void finish(
      const Args& args, const I (&at)[K], const Batch<N>& batch, const A (&own)[OWN],
      A (&sum)[V]) {
    const Functor& f = args;
    A y[OUT][N];
    UNROLL for (int i = 0; i < N; ++i) {
      A from[IN + 1], to[OUT + SUMS];
      UNROLL for (int k = 0; k < IN; ++k) from[k] = widen(batch.x[k], i);
      from[IN] = own[BESIDE ? i : 0];
      f(from, to);
      UNROLL for (int k = 0; k < OUT; ++k) y[k][i] = to[k];
      if constexpr (SUMS > 0) sum[i] += to[OUT];
    }
    UNROLL for (int k = 0; k < OUT; ++k) put<ADD>(args.out[k] + at[IN + k], y[k]);
  }

  // What a block's threads have, by channel, in the order of a tree and then of the warps.
  static DEVICE void leave(const Args& args, u32 run, u32 tile, int lanes, A (&sum)[V]) {
    if constexpr (!BESIDE) {
      UNROLL for (int d = V / 2; d; d /= 2) {
        UNROLL for (int i = 0; i < d; ++i) sum[i] += sum[i + d];
      }
    }
    using Room = Several<A, WARPS * 32 * OWN>;
    __shared__ Room room;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = lanes * OWN;
    UNROLL for (int i = 0; i < OWN; ++i) {
      for (int by = lanes; by < 32; by *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], by);
      if (lane < lanes) room.at[warp * width + lane * OWN + i] = sum[i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
      const i64 channel = i64(tile) * width + c;
      A total = 0;
      for (int w = 0; w < int(blockDim.x) / 32; ++w) total += room.at[w * width + c];
      if (channel < args.channels) args.beside[i64(run) * args.channels + channel] = total;
    }
  }

  static DEVICE void run(const Args& args) {
    const int lanes = BESIDE ? 1 << args.log_lanes : 1;
    const int lane = int(threadIdx.x) & (lanes - 1);
    const I row = I(threadIdx.x) >> (BESIDE ? args.log_lanes : 0);
    const I rows = I(blockDim.x) >> (BESIDE ? args.log_lanes : 0);
    // Blocks follow memory: channels come between the runs of one.
    const u32 slow = args.fast.divide(blockIdx.x), fast = blockIdx.x - slow * args.fast.size;
    const u32 part = BESIDE ? slow : args.tiles.divide(slow);
    const u32 tile = BESIDE ? fast : slow - part * args.tiles.size;
    const u32 number = BESIDE ? slow : part * args.fast.size + fast;
    if (!BESIDE && number >= u32(args.runs)) return;
    const I begin = I(number) * args.run, channel = (I(tile) * lanes + lane) * OWN;
    const bool there = channel < args.channels, last = begin + args.run >= args.items;
    const I end = !there ? 0 : last ? args.items : begin + args.run;
    A own[OWN] = {}, sum[V] = {};
    I base[K];
    if (there) {
      UNROLL for (int i = 0; i < OWN; ++i) {
        own[i] = widen(args.in[IN][(channel + i) * args.step[K]]);
      }
    }
    UNROLL for (int k = 0; k < K; ++k) base[k] = channel * args.step[k];
    ROLLED for (I first = begin + row; first < end; first += rows * DEPTH) {
      I at[DEPTH][K];
      Batch<V> batch[DEPTH];
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const I item = first + d * rows;
        if (item >= end) continue;
        args.walk.template offsets<BESIDE ? 1 : V>(item, at[d]);
        UNROLL for (int k = 0; k < K; ++k) at[d][k] += base[k];
        fetch<V>(args, at[d], batch[d]);
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        if (first + d * rows < end) finish<V>(args, at[d], batch[d], own, sum);
      }
    }
    if constexpr (DIMS == 1 && V > 1) {
      // What does not fill a vector: the same code for one element.
      if (last && I(threadIdx.x) < args.tail) {
        I one[K];
        Batch<1> rest;
        UNROLL for (int k = 0; k < K; ++k) one[k] = args.items * V + I(threadIdx.x) + base[k];
        fetch<1>(args, one, rest);
        finish<1>(args, one, rest, own, sum);
      }
    }
    if constexpr (SUMS > 0) leave(args, number, tile, lanes, sum);
  }
};

}  // namespace baracuda
#endif
