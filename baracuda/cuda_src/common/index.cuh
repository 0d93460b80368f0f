// From the number of a work item to the offsets of its operands, for any strides.
#pragma once
#include "types.cuh"

namespace baracuda {

// Dimensions that are left after merging; arrays with more are not taken.
constexpr int MOST_DIMS = 10;

HD u32 multiply_high(u32 a, u32 b) { return u32((u64(a) * b) >> 32); }
HD u64 multiply_high(u64 a, u64 b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return u64((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

// An extent, with what turns division by it into a multiplication (Granlund and Montgomery, 1994);
// exact below half the range of U.
template <class U> struct Extent {
  U size, magic, shift;

  HD U divide(U n) const { return (multiply_high(n, magic) + n) >> shift; }
};

// An entry of an index of either width.
HD i64 entry_of(const void* p, i64 at, bool wide) {
  return wide ? static_cast<const i64*>(p)[at] : i64(static_cast<const i32*>(p)[at]);
}

// The same as it lies in memory. A thread that has several under way asks for all of them before it
// makes numbers of any.
struct RawEntry {
  u32 low, high;
};
HD RawEntry raw_entry(const void* p, i64 at, bool wide) {
  const u32* words = static_cast<const u32*>(p);
  return {words[wide ? 2 * at : at], wide ? words[2 * at + 1] : 0};
}
HD i64 entry_of(RawEntry raw, bool wide) {
  return wide ? i64(u64(raw.high) << 32 | raw.low) : i64(i32(raw.low));
}

// Splits items over dimensions, the innermost first, for K operands.
//
// DIMS 1: one run, in which all operands lie alike. DIMS 2: runs of `run` items with a stride
// from one to the next. DIMS 0: as many as `dims` says, at most MOST, every dimension strided.
template <int DIMS, int K, class I, int MOST = MOST_DIMS> struct Walk;

template <int K, class I, int MOST> struct Walk<1, K, I, MOST> {
  template <int V> HD void offsets(I item, I (&at)[K]) const {
    UNROLL for (int k = 0; k < K; ++k) at[k] = item * V;
  }
};

template <int K, class I, int MOST> struct Walk<2, K, I, MOST> {
  using U = typename Unsigned<I>::type;
  Extent<U> run;
  U pad;
  I stride[K];

  template <int V> HD void offsets(I item, I (&at)[K]) const {
    U row = run.divide(U(item)), column = U(item) - row * run.size;
    UNROLL for (int k = 0; k < K; ++k) at[k] = I(row) * stride[k] + I(column) * V;
  }
};

template <int K, class I, int MOST> struct Walk<0, K, I, MOST> {
  using U = typename Unsigned<I>::type;
  Extent<U> extent[MOST];
  U dims, pad;
  I stride[MOST][K];

  template <int V> HD void offsets(I item, I (&at)[K]) const {
    if (dims == 1) {
      UNROLL for (int k = 0; k < K; ++k) at[k] = item * stride[0][k];
      return;
    }
    U rest = U(item);
    UNROLL for (int k = 0; k < K; ++k) at[k] = 0;
    // The last dimension takes what is left, so that one dimension needs no division.
    ROLLED for (U d = 0; d < dims; ++d) {
      U next = d + 1 < dims ? extent[d].divide(rest) : 0;
      I here = I(rest - next * extent[d].size);
      rest = next;
      UNROLL for (int k = 0; k < K; ++k) at[k] += here * stride[d][k];
    }
  }
  // Of one operand, for lanes that take one each.
  HD I offset(I item, int k) const {
    I at = 0;
    U rest = U(item);
    ROLLED for (U d = 0; d < dims; ++d) {
      const U next = d + 1 < dims ? extent[d].divide(rest) : 0;
      at += I(rest - next * extent[d].size) * stride[d][k];
      rest = next;
    }
    return at;
  }
};

// The number of the first element of an array that may be a part of another.
template <bool THERE> struct Beginning {};
template <> struct Beginning<true> {
  i64 first;
};

}  // namespace baracuda
