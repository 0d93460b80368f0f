// Sums over lists: of one value for every element of any number of arrays, in a fixed order.
//
// The table is that of common/lists.cuh, its rows without outputs. A block sums one chunk and
// leaves one number; `Total` adds these up.
#pragma once
#include "lists.cuh"
#include "total.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <template <class> class F, class T, int V> struct ListTotals {
  using A = Acc<T>;
  using Functor = F<A>;
  static constexpr int IN = Functor::inputs, DEPTH = 4, RESIDENT = 4;

  struct Sums : Table {
    A* sums;
  };
  struct Args : Sums, Functor {
    i64 map;
    i32 chunks, elements;
  };

  template <int N>
  static DEVICE void add(const Functor& f, const Vec<T, N> (&x)[IN], A* sum) {
    UNROLL for (int i = 0; i < N; ++i) {
      A from[IN], to[1];
      UNROLL for (int k = 0; k < IN; ++k) from[k] = widen(x[k], i);
      evaluate<T>(f, from, to);
      sum[i] += to[0];
    }
  }

  static DEVICE void run(const Args& args) {
    const Functor& f = args;
    const u64 place = args.table[args.map + i64(blockIdx.x)];
    const u64* const row = args.table + i64(u32(place)) * (IN + 1);
    const i64 begin = i64(place >> 32) * args.elements, left = i64(row[IN]) - begin;
    const i32 count = left < args.elements ? i32(left) : args.elements;
    const T* in[IN];
    u64 bits = 0;
    UNROLL for (int k = 0; k < IN; ++k) {
      in[k] = reinterpret_cast<const T*>(row[k]) + begin;
      bits |= row[k];
    }
    // A thread adds the same elements in the same order, however they are aligned.
    const i32 whole = bits % (sizeof(T) * V) == 0 ? count - count % V : 0;
    const i32 step = i32(blockDim.x) * V;
    A sum[V] = {};
    ROLLED for (i32 first = i32(threadIdx.x) * V; first < count; first += step * DEPTH) {
      Vec<T, V> batch[DEPTH][IN];
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const i32 at = first + d * step;
        if (at >= whole) continue;
        UNROLL for (int k = 0; k < IN; ++k) batch[d][k] = load<V>(in[k] + at);
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const i32 at = first + d * step;
        if (at < whole) {
          add<V>(f, batch[d], sum);
          continue;
        }
        UNROLL for (int i = 0; i < V; ++i) {
          if (at + i >= count) continue;
          Vec<T, 1> one[IN];
          UNROLL for (int k = 0; k < IN; ++k) one[k] = load<1>(in[k] + at + i);
          add<1>(f, one, sum + i);
        }
      }
    }
    UNROLL for (int d = V / 2; d; d /= 2) {
      UNROLL for (int i = 0; i < d; ++i) sum[i] += sum[i + d];
    }
    const A total = block_total(sum[0]);
    if (threadIdx.x == 0) args.sums[blockIdx.x] = total;
  }
};

}  // namespace baracuda
#endif
