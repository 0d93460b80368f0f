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

template <class T, class X, class O, class P, int V, class F> struct ByRow {
  static constexpr int RESIDENT = 4;
  using A = Acc<T>;

  struct Args : ByRowArrays<T, X, O, P> {
    Dealt dealt;
    i32 step;            // bytes from an index to the next
    u32 items;           // vectors of all rows
    Extent<u32> across;  // vectors of a row, to divide by
    u32 pad;
  };

  template <int FLAG, class U>
  static DEVICE void take(const U* from, i64 at, A (&x)[V]) {
    if constexpr ((F::TAKES & FLAG) != 0) widen(load<V>(from + at), x);
  }

  static DEVICE void run(const Args& args) {
    const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= args.items) return;
    const u32 row = args.across.divide(item);
    const i64 at = i64(item) * V;
    const i64 segment = *row_of(args.index, row, args.step);
    A x[V] = {}, y[V] = {}, known[V] = {}, sums[V] = {}, out[V] = {};
    if (u64(segment) < args.dealt.rows) {
      const i64 beside = (segment * args.across.size + (item - row * args.across.size)) * V;
      take<TAKES_X>(args.x, at, x);
      take<TAKES_Y>(args.y, at, y);
      take<TAKES_KNOWN>(args.known, beside, known);
      take<TAKES_SUMS>(args.sums, beside, sums);
      u32 many = 1;
      if constexpr ((F::TAKES & TAKES_COUNT) != 0) {
        const u32* begin = args.offsets + args.dealt.place(u32(segment));
        many = begin[1] - begin[0];
      }
      UNROLL for (int v = 0; v < V; ++v) out[v] = F::of(x[v], y[v], known[v], sums[v], A(many));
    }
    Vec<O, V> result;
    narrow(out, result);
    store<V>(args.out + at, result);
  }
};

}  // namespace baracuda
#endif
