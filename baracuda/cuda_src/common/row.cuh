// What a row is to kernels: how it is taken and read, and what is beside its elements.
#pragma once
#include "index.cuh"
#include "philox.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

enum Way { LANES, BLOCK, LONG };
// How the elements of a row are read and written: in vectors, one by one, one by one in steps.
enum Access { VECTORS, ELEMENTS, STEPS };
// Of elements that a row may leave out: those behind the diagonal, and what a mask says.
enum Left { NONE = 0, CAUSAL = 1, MASKED = 2 };

// What columns belong to: elements of all rows; the planes that make a row up, vectors then lying
// within one (PLANES) or not; elements of each row by itself, which has a column of its own (ROWS).
enum Columned { BY_ELEMENTS, BY_PLANES, BY_MIXED_PLANES, BY_ROWS };
HD constexpr bool of_planes(int by) { return by == BY_PLANES || by == BY_MIXED_PLANES; }

// Elements of a plane, rows of one member of a batch, planes of a row;
// lanes that join a plane's sums.
template <bool THERE> struct Planes {};
template <> struct Planes<true> {
  Extent<u32> plane, groups;
  i32 channels, log_together;
};

// One more array: the mask, or the sums of a block's rows.
template <class P> struct Beside {
  P* beside;
};
template <> struct Beside<void> {};

// What rows that are losses have each: a label; the loss, its cotangent, or a sum for every block.
template <bool> struct Each {};
template <> struct Each<true> {
  const void* labels;
  void* costs;
};
// And together: what each has of one cotangent, and how the arrays are.
enum : u32 { WIDE_LABELS = 1, REDUCED = 2, WIDE_LOSS = 4 };
template <bool> struct Together {};
template <> struct Together<true> {
  f64 part;
  u32 flags, pad;
};

// Where the elements of a row are, and which of them count.
template <int WALKED> struct RowPlace {
  i64 at[WALKED];
  i32 end, written, channel;
  int rank, lanes;
};

// Bits of those of V elements from the e-th on that lie before the end of their row, and that the
// mask keeps, the array of this number.
template <int V, bool MASKED, int NUMBER, class ARGS, class ROW>
DEVICE u32 counting(const ARGS& args, const ROW& row, i32 e) {
  u32 bits = 0;
  UNROLL for (int i = 0; i < V; ++i) {
    bool keep = e + i < row.end;
    if constexpr (MASKED) {
      keep = keep && args.beside[row.at[NUMBER] + (e + i) * args.step[NUMBER]];
    }
    bits |= u32(keep) << i;
  }
  return bits;
}
// Bits of those that a functor of random words leaves, from the one on that is so far behind the
// first.
template <class F, int V, bool TOGETHER, class ARGS>
DEVICE u32 staying(const F& f, i64 number, const ARGS& args) {
  if constexpr (numbered<F>(0)) return f.template left<V, TOGETHER>(u64(args.first + number));
  return 0;
}
// Both for a vector: V bits behind V others, or those in the upper half of a word for all vectors.
template <int V> DEVICE u64 apart(u32 bits) {
  return bits & (1u << V) - 1 | u64(bits >> V) << 32;
}
template <int V> DEVICE u32 together(u64 bits, int h) {
  const u64 own = bits >> h * V;
  return u32(own) & (1u << V) - 1 | (u32(own >> 32) & (1u << V) - 1) << V;
}

// Where an element is, from the beginning of its row.
template <Access ACCESS> DEVICE i64 offset(i32 e, i64 step) {
  return ACCESS == STEPS ? e * step : i64(e);
}
// V elements of a row from the e-th on; 0, or those of v, for what is not there.
template <int V, Access ACCESS, class T>
DEVICE Vec<T, V> fetch(const T* p, i64 step, i32 e, i32 end, Vec<T, V> v = {}) {
  if constexpr (ACCESS == VECTORS) {
    if (e < end) v = load<V>(p + e);
  } else {
    UNROLL for (int i = 0; i < V; ++i) {
      if (e + i < end) v.set(i, p[offset<ACCESS>(e + i, step)]);
    }
  }
  return v;
}

// The same of a column, whose type may be wider than that of rows: in accesses of 16 bytes at most.
template <class C, int V, Access ACCESS>
DEVICE Vec<C, V> fetch_column(const void* column, i64 step, i32 e, i32 end) {
  constexpr int A = 16 / sizeof(C) < V ? 16 / sizeof(C) : V;
  const C* p = static_cast<const C*>(column);
  if constexpr (A == V) return fetch<V, ACCESS>(p, step, e, end);
  Vec<C, V> v;
  UNROLL for (int i = 0; i < V; i += A) paste(v, i, fetch<A, ACCESS>(p, step, e + i, end));
  return v;
}

// Writes those of V elements that are there.
template <Access ACCESS, bool ADD, int V, class T>
DEVICE void put(T* p, i64 step, i32 e, i32 end, Acc<T> (&y)[V]) {
  if constexpr (ACCESS == VECTORS) {
    put<ADD>(p + e, y);
  } else {
    UNROLL for (int i = 0; i < V; ++i) {
      Acc<T> one[1] = {y[i]};
      if (e + i < end) put<ADD>(p + offset<ACCESS>(e + i, step), one);
    }
  }
}

// The same where only a constant says whether to add.
template <Access ACCESS, int V, class T>
DEVICE void put_or_add(bool add, T* p, i64 step, i32 e, i32 end, Acc<T> (&y)[V]) {
  if (add) put<ACCESS, true>(p, step, e, end, y);
  else put<ACCESS, false>(p, step, e, end, y);
}

// V elements of an array of rows. These are of T, but for the arrays that are of a narrower N, such
// as what is added to a residual stream. Which one it is, a constant says wherever it is asked.
template <class T, class N, int V> struct Piece {
  Vec<T, V> own;
  Vec<N, V> narrow;

  template <Access ACCESS>
  DEVICE void fetch(bool narrower, const T* p, i64 at, i64 step, i32 e, i32 end) {
    const N* const other = reinterpret_cast<const N*>(p);
    if (narrower) narrow = baracuda::fetch<V, ACCESS>(other + at, step, e, end);
    else own = baracuda::fetch<V, ACCESS>(p + at, step, e, end);
  }
  DEVICE void widen(bool narrower, Acc<T> (&x)[V]) const {
    if (narrower) baracuda::widen(narrow, x);
    else baracuda::widen(own, x);
  }
};
template <class N, Access ACCESS, int V, class T>
DEVICE void put_either(
    bool narrower, bool add, T* p, i64 at, i64 step, i32 e, i32 end, Acc<T> (&y)[V]) {
  if (narrower) put_or_add<ACCESS>(add, reinterpret_cast<N*>(p) + at, step, e, end, y);
  else put_or_add<ACCESS>(add, p + at, step, e, end, y);
}
template <class N, int V, class T> DEVICE void prefetch_either(bool narrower, const T* p, i64 at) {
  if (narrower) prefetch<V>(reinterpret_cast<const N*>(p) + at);
  else prefetch<V>(p + at);
}
// The address of the element `at`.
template <class N, class T> DEVICE const T* moved(bool narrower, const T* p, i64 at) {
  return narrower ? reinterpret_cast<const T*>(reinterpret_cast<const N*>(p) + at) : p + at;
}

// First elements of a row that tell its centre: as many as two registers take.
template <class T> constexpr int FRONT = sizeof(T) == 2 ? 4 : 2;

}  // namespace baracuda
#endif
