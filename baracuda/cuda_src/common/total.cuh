// Sums in a fixed order: of one value for every element of some views, in two stages.
//
// A block sums a run of items that its number fixes, and leaves one number; one more block adds
// these up. How many there are depends on the arrays alone, so every device gets the same bits.
// A block that is alone has the sum of all.
#pragma once
#include "elementwise.cuh"
#include "reduce.cuh"
#ifdef __CUDACC__

namespace baracuda {

// A block that is alone DELIVERS; the result may have the accumulate type.
enum : int { DELIVERS = 1, WIDE_SUM = 2 };

template <class A> DEVICE f64 part_of(A sum, f64 share) { return f64(sum) * share; }

// The first stage, F mapped over all elements.
template <template <class> class F, class T, int V, int DEPTH, int DIMS, class I> struct Totals {
  using A = Acc<T>;
  using Functor = F<A>;
  static constexpr int IN = Functor::inputs;
  static constexpr bool FEW = sizeof(T) == 8 || sizeof(I) == 8 || DIMS == 0;
  // More inputs in flight take more registers.
  static constexpr int RESIDENT = IN > 2 ? (FEW ? 3 : 8 - IN) : FEW ? 4 : DIMS > 1 ? 5 : 6;

  struct Sources {
    const T* in[IN];
    A* sums;
    T* out;
  };
  struct Args : Sources, Functor {
    f64 share;
    I items, tail, rounds, how;
    Walk<DIMS, IN, I> walk;
  };

  template <int N> struct Batch {
    Vec<T, N> x[IN];
  };

  template <int N> static DEVICE void fetch(const Args& args, const I (&at)[IN], Batch<N>& batch) {
    UNROLL for (int k = 0; k < IN; ++k) batch.x[k] = load<N>(args.in[k] + at[k]);
  }

  template <int N, int S>
  static DEVICE void add(const Args& args, const Batch<N>& batch, A (&sum)[S]) {
    const Functor& f = args;
    UNROLL for (int i = 0; i < N; ++i) {
      A from[IN], to[1];
      UNROLL for (int k = 0; k < IN; ++k) from[k] = widen(batch.x[k], i);
      evaluate<T>(f, from, to);
      sum[i] += to[0];
    }
  }

  static DEVICE void run(const Args& args) {
    const I step = I(blockDim.x), run = step * DEPTH * args.rounds;
    I first = I(blockIdx.x) * run + I(threadIdx.x);
    A sum[V] = {};
    ROLLED for (I round = 0; round < args.rounds; ++round, first += step * DEPTH) {
      Batch<V> batch[DEPTH];
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const I item = first + d * step;
        if (item >= args.items) continue;
        I at[IN];
        args.walk.template offsets<V>(item, at);
        fetch<V>(args, at, batch[d]);
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const I item = first + d * step;
        if (item < args.items) {
          add<V>(args, batch[d], sum);
        } else if (DIMS == 1 && V > 1 && item < args.items + args.tail) {
          I one[IN];
          Batch<1> rest;
          UNROLL for (int k = 0; k < IN; ++k) one[k] = args.items * (V - 1) + item;
          fetch<1>(args, one, rest);
          add<1>(args, rest, sum);
        }
      }
    }
    UNROLL for (int d = V / 2; d; d /= 2) {
      UNROLL for (int i = 0; i < d; ++i) sum[i] += sum[i + d];
    }
    const A total = block_total(sum[0]);
    if (threadIdx.x != 0) return;
    if (args.how & DELIVERS) {
      deliver_one(A(part_of(total, args.share)), args.out, 0, args.how & WIDE_SUM);
    } else {
      args.sums[blockIdx.x] = total;
    }
  }
};

// The second stage: one block. A sum of nothing is 0, its mean 0 times NaN. What is shared by as
// many as the `counts` say, or by shares of rows (N), is divided by their sum.
template <class T, class N = i32> struct Total {
  using A = Acc<T>;
  static constexpr int RESIDENT = 1;

  struct Args {
    const A* sums;
    const N* counts;
    T* out;
    f64 share;
    i32 count, parts, wide, pad;
  };

  static DEVICE void run(const Args& args) {
    A sum = 0;
    for (i32 i = i32(threadIdx.x); i < args.count; i += i32(blockDim.x)) sum += args.sums[i];
    sum = block_total(sum);
    if (threadIdx.x != 0) return;
    f64 total = part_of(sum, args.share);
    if (args.parts) total /= f64(all_of(args.counts, args.parts));
    deliver_one(A(total), args.out, 0, args.wide);
  }
};

}  // namespace baracuda
#endif
