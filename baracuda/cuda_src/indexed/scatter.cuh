// Scatter schedules in memory: elements are added to where an index says, in the accumulate type.
#pragma once
#include "common/index.cuh"
#include "common/report.cuh"
#include "common/vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Whether every lane of a warp, all of which ask, has the same x.
template <class I> DEVICE bool one_for_all(I x) {
  return __all_sync(~0u, x == __shfl_sync(~0u, x, 0));
}
template <class A> DEVICE A warp_sum(A x) {
  UNROLL for (int lane = 16; lane; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// Any layout: one atomic addition in memory for every element. The target has the accumulate type
// and holds zeros, or what is added to.
template <class T, class P, int DEPTH, class I> struct ScatterAtomic {
  static constexpr int RESIDENT = 4;
  // No offset, of either sign, is so large.
  static constexpr I NOWHERE = I(~typename Unsigned<I>::type(0) >> 1);

  struct Args {
    const T* values;
    const P* index;
    Acc<T>* target;
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I items, axis;         // axis: the target's stride along it
    Walk<0, 3, I> walk;    // values, index, target with the axis left out
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I at[DEPTH][3];
    T value[DEPTH];
    P index[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item < args.items) {
        args.walk.template offsets<1>(item, at[d]);
        value[d] = args.values[at[d][0]];
        index[d] = args.index[at[d][1]];
      }
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      const bool there = item < args.items &&
                         valid(index[d], args.extent, args.listener, args.ticket, item);
      Acc<T> x = 0;
      I bin = NOWHERE;
      if (there) {
        bin = at[d][2] + I(index[d]) * args.axis;
        x = widen(value[d]);
      }
      // One bin for all of a warp: its sum first, or 32 additions would queue for one address.
      const bool together = one_for_all(bin);
      if (together) x = warp_sum(x);
      if (there && (!together || (threadIdx.x & 31) == 0)) atomicAdd(args.target + bin, x);
    }
  }
};

// Few elements per row of the last axis, many bins: whoever writes a vector of V bins adds what
// points there, in the order of the elements, so that zeros and sums are one stream of writes.
// R is the type of the sums: that of the values, or the accumulate type.
template <class T, class P, int V, int DEPTH, class I, bool ADD, class R = T> struct ScatterFew {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr int RESIDENT = 4;

  struct Args {
    const T* values;
    const P* index;
    R* target;
    Report* listener;
    i64 extent;
    u32 ticket, length;  // elements per row
    I items, steps[2];   // vectors of bins in all; strides along a row: of values, of index
    I pad;
    Extent<U> per_row;   // vectors of bins
    U last;
    Walk<0, 3, I> walk;  // rows of values, index, target
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) return;
      const I row = I(args.per_row.divide(U(item)));
      const I begin = (item - row * I(args.per_row.size)) * V;
      I at[3];
      args.walk.template offsets<1>(row, at);
      A x[V] = {};
      ROLLED for (u32 k = 0; k < args.length; ++k) {
        const P i = args.index[at[1] + I(k) * args.steps[1]];
        if (begin == 0) {
          valid(i, args.extent, args.listener, args.ticket, i64(row) * args.length + k);
        }
        const u64 local = u64(i64(i)) - u64(begin);
        if (local < V) {
          const A value = widen(args.values[at[0] + I(k) * args.steps[0]]);
          UNROLL for (int v = 0; v < V; ++v) {
            if (local == v) x[v] += value;
          }
        }
      }
      put_total<T, ADD>(args.target + at[2] + begin, x);
    }
  }
};

// Sums that were kept apart in the accumulate type, rounded once to where they belong.
template <class T, int V, class I, bool ADD> struct Settle {
  static constexpr int RESIDENT = 4;

  struct Args {
    const Acc<T>* sums;
    T* target;
    I items, pad;
    Walk<0, 2, I> walk;  // sums, target
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    I at[2];
    args.walk.template offsets<1>(item, at);
    constexpr int STEP = lesser(V, 16 / int(sizeof(Acc<T>)));
    Acc<T> x[V];
    UNROLL for (int v = 0; v < V; v += STEP) {
      const Vec<Acc<T>, STEP> part = load<STEP>(args.sums + at[0] + v);
      UNROLL for (int j = 0; j < STEP; ++j) x[v + j] = part.get(j);
    }
    put<ADD>(args.target + at[1], x);
  }
};

}  // namespace baracuda
#endif
