// Elements of rows beside what is known of the segment of their row.
//
// F computes an element from those in its place: x and y of the rows, `known` and a sum of the
// segment, and the number of rows of it. Rows of no segment are 0.
#pragma once
#include "invert_index.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <class T, class X, class O, class P> struct ByRowArrays {
  const X* x;
  const T* y;
  const T* known;
  const Acc<T>* sums;
  const P* index;
  const u32* offsets;  // of lists, which tell how long they are
  O* out;
};

// What F takes; the others are not there.
enum Takes { TAKES_X = 1, TAKES_Y = 2, TAKES_KNOWN = 4, TAKES_SUMS = 8, TAKES_COUNT = 16 };

// A thread has DEPTH vectors under way.
template <class T, class X, class O, class P, int V, class F> struct ByRow {
  static constexpr int RESIDENT = 4, DEPTH = 2;
  using A = Acc<T>;

  struct Args : ByRowArrays<T, X, O, P> {
    Dealt dealt;
    i32 step;            // bytes from an index to the next
    u32 items;           // vectors of all rows
    Extent<u32> across;  // vectors of a row, to divide by
    u32 pad;
  };

  template <int FLAG, class U> static DEVICE void take(const U* from, i64 at, A (&x)[V]) {
    if constexpr ((F::TAKES & FLAG) != 0) widen(load<V>(from + at), x);
  }

  static DEVICE void run(const Args& args) {
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, lane = thread & 31;
    const u32 first = (thread - lane) * DEPTH + lane;
    u32 item[DEPTH], row[DEPTH];
    i64 segment[DEPTH];
    A x[DEPTH][V] = {}, y[DEPTH][V] = {}, known[DEPTH][V] = {}, sums[DEPTH][V] = {};
    u32 many[DEPTH];
    // The last vector again where there are fewer: no branch lies between two loads.
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      item[d] = lesser(first + d * 32, args.items - 1);
      row[d] = args.across.divide(item[d]);
      segment[d] = *row_of(args.index, row[d], args.step);
      take<TAKES_X>(args.x, i64(item[d]) * V, x[d]);
      take<TAKES_Y>(args.y, i64(item[d]) * V, y[d]);
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      many[d] = 1;
      if (u64(segment[d]) >= args.dealt.rows) continue;
      const u32 column = item[d] - row[d] * args.across.size;
      const i64 beside = (segment[d] * args.across.size + column) * V;
      take<TAKES_KNOWN>(args.known, beside, known[d]);
      take<TAKES_SUMS>(args.sums, beside, sums[d]);
      if constexpr ((F::TAKES & TAKES_COUNT) != 0) {
        const u32* begin = args.offsets + args.dealt.place(u32(segment[d]));
        many[d] = begin[1] - begin[0];
      }
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * 32 >= args.items) return;
      A out[V] = {};
      UNROLL for (int v = 0; v < V && u64(segment[d]) < args.dealt.rows; ++v) {
        out[v] = F::of(x[d][v], y[d][v], known[d][v], sums[d][v], A(many[d]));
      }
      Vec<O, V> result;
      narrow(out, result);
      store<V>(args.out + i64(item[d]) * V, result);
    }
  }
};

}  // namespace baracuda
#endif
