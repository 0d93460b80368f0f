// Scatter schedules: elements are added to where an index says, in the accumulate type.
#pragma once
#include "index.cuh"
#include "report.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Any layout: one atomic addition in memory for every element. The target has the accumulate type
// and holds zeros, or what is added to.
template <class T, class P, int DEPTH, class I> struct ScatterAtomic {
  static constexpr int RESIDENT = 4;

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
      if (item >= args.items) return;
      if (valid(index[d], args.extent, args.listener, args.ticket, i64(item))) {
        atomicAdd(args.target + at[d][2] + I(index[d]) * args.axis, widen(value[d]));
      }
    }
  }
};

// Along the last axis: a block owns rows of the target, sums them in shared memory and writes each
// element once, so that nothing has to be zeroed or rounded again. V values are read, and XI
// indices, at a time; VO elements written.
template <class T, class P, int V, int XI, int VO, class I, bool ADD> struct ScatterRows {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr int RESIDENT = 2;

  struct Args {
    const T* values;
    const P* index;
    T* target;
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I rows, each, length, pads;  // rows in all and per block, values per row
    Extent<U> per_row;           // vectors of values per row
    U last;
    Walk<0, 3, I> walk;          // rows of values, index, target
  };

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) char memory[];
    A* sums = reinterpret_cast<A*>(memory);
    const I n = I(args.extent), begin = I(blockIdx.x) * args.each;
    const I rows = begin + args.each < args.rows ? args.each : args.rows - begin;
    for (I i = threadIdx.x; i < rows * n; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    for (I i = threadIdx.x; i < rows * I(args.per_row.size); i += blockDim.x) {
      const I row = I(args.per_row.divide(U(i))), column = (i - row * I(args.per_row.size)) * V;
      I at[3];
      args.walk.template offsets<1>(begin + row, at);
      const Vec<T, V> value = load<V>(args.values + at[0] + column);
      Vec<P, V> index;
      UNROLL for (int v = 0; v < V; v += XI) {
        Vec<P, XI> part = load<XI>(args.index + at[1] + column + v);
        paste(index, v, part);
      }
      const i64 position = i64(begin + row) * args.length + column;
      UNROLL for (int v = 0; v < V; ++v) {
        const P k = index.get(v);
        if (valid(k, args.extent, args.listener, args.ticket, position + v)) {
          atomicAdd(sums + row * n + I(k), widen(value, v));
        }
      }
    }
    __syncthreads();
    for (I row = 0; row < rows; ++row) {
      I at[3];
      args.walk.template offsets<1>(begin + row, at);
      for (I i = I(threadIdx.x) * VO; i < n; i += I(blockDim.x) * VO) {
        A x[VO];
        UNROLL for (int v = 0; v < VO; ++v) x[v] = sums[row * n + i + v];
        put<ADD>(args.target + at[2] + i, x);
      }
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
