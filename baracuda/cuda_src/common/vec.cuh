// Aligned vectors of storage, and their way to the accumulate type and back with one rounding.
#pragma once
#include "types.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Elements of 16 bits are kept in pairs: registers have 32, and splitting what was loaded together
// would cost more than the arithmetic of a simple op.
template <class T, int N, bool PAIRS = sizeof(T) == 2 && N % 2 == 0>
struct alignas(N & (N - 1) ? sizeof(T) : sizeof(T) * N) Vec {
  T at[N];

  DEVICE T get(int i) const { return at[i]; }
  DEVICE void set(int i, T x) { at[i] = x; }
};

template <class T, int N>
struct alignas(N & (N - 1) ? 4 : 2 * N) Vec<T, N, true> {
  u32 pair[N / 2];

  DEVICE T get(int i) const {
    const u16 bits = u16(i % 2 ? pair[i / 2] >> 16 : pair[i / 2]);
    return reinterpret_cast<const T&>(bits);
  }
  DEVICE void set(int i, T x) {
    const u32 bits = reinterpret_cast<const u16&>(x);
    pair[i / 2] = i % 2 ? (pair[i / 2] & 0xffff) | (bits << 16) : (pair[i / 2] & 0xffff0000) | bits;
  }
};

DEVICE f32 widen(f32 x) { return x; }
DEVICE f64 widen(f64 x) { return x; }
DEVICE f32 widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
DEVICE f32 widen(f16 x) {
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
template <class T, int N> DEVICE Acc<T> widen(const Vec<T, N>& v, int i) { return widen(v.get(i)); }
template <int N> DEVICE f32 widen(const Vec<bf16, N, true>& v, int i) {
  return __uint_as_float(i % 2 ? v.pair[i / 2] & 0xffff0000 : v.pair[i / 2] << 16);
}
template <class T, int N> DEVICE void widen(const Vec<T, N>& v, Acc<T> (&x)[N]) {
  UNROLL for (int i = 0; i < N; ++i) x[i] = widen(v, i);
}

DEVICE void narrow(f32 x, f32& y) { y = x; }
DEVICE void narrow(f64 x, f64& y) { y = x; }
DEVICE void narrow(f32 x, bf16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void narrow(f32 x, f16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

// Two roundings in one instruction, already in the order of memory.
DEVICE u32 narrow_pair(f32 low, f32 high, f16) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
DEVICE u32 narrow_pair(f32 low, f32 high, bf16) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
// The larger of each two, NaN if one of them is.
DEVICE u32 larger_pair(u32 a, u32 b, f16) {
  u32 y;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
DEVICE u32 larger_pair(u32 a, u32 b, bf16) {
  u32 y;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
template <class T, int N> DEVICE void narrow(const Acc<T> (&x)[N], Vec<T, N, false>& v) {
  UNROLL for (int i = 0; i < N; ++i) narrow(x[i], v.at[i]);
}
template <class T, int N> DEVICE void narrow(const f32 (&x)[N], Vec<T, N, true>& v) {
  UNROLL for (int i = 0; i < N; i += 2) v.pair[i / 2] = narrow_pair(x[i], x[i + 1], T{});
}

// A elements of a vector of N, from the i-th on.
template <class T, int N, int A> DEVICE void paste(Vec<T, N>& v, int i, const Vec<T, A>& part) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0 && A % 2 == 0) {
    UNROLL for (int j = 0; j < A / 2; ++j) v.pair[i / 2 + j] = part.pair[j];
  } else {
    UNROLL for (int j = 0; j < A; ++j) v.set(i + j, part.get(j));
  }
}
template <int A, class T, int N> DEVICE Vec<T, A> cut(const Vec<T, N>& v, int i) {
  Vec<T, A> part;
  if constexpr (sizeof(T) == 2 && N % 2 == 0 && A % 2 == 0) {
    UNROLL for (int j = 0; j < A / 2; ++j) part.pair[j] = v.pair[i / 2 + j];
  } else {
    UNROLL for (int j = 0; j < A; ++j) part.set(j, v.get(i + j));
  }
  return part;
}

// One access of N elements.
template <int N, class T> DEVICE Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, class T> DEVICE void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

// N elements, from memory to where they are kept on chip; there once `copied` has been called, and
// a barrier by whoever else reads them.
template <int N, class T> DEVICE void copy(T* to, const T* from) {
  constexpr int BYTES = int(sizeof(T)) * N;
  if constexpr (BYTES < 4) {
    store<N>(to, load<N>(from));
  } else {
    const u32 at = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES));
  }
}
DEVICE void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Asks the L2 for the sector of an element.
template <class T> DEVICE void prefetch(const T* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
// For what a block will load<N> from p on: one thread for each line of 128 bytes.
template <int N, class T> DEVICE void prefetch(const T* p) {
  if (threadIdx.x % (128 / sizeof(Vec<T, N>)) == 0) prefetch(p);
}

// N elements in accesses of A, of a row from its element `at` on, which is at p. Those before 0 and
// from `end` on are left out; one unsigned comparison tells both.
template <int N, int A, class T, class I>
DEVICE void load_part(const T* p, I at, I end, Vec<T, N>& v) {
  using U = typename Unsigned<I>::type;
  UNROLL for (int i = 0; i < N; i += A) {
    Vec<T, A> part{};
    if (U(at + i) < U(end)) part = load<A>(p + i);
    paste(v, i, part);
  }
}
template <int N, int A, class T, class I>
DEVICE void store_part(T* p, I at, I end, const Vec<T, N>& v) {
  UNROLL for (int i = 0; i < N; i += A) {
    if (at + i < end) store<A>(p + i, cut<A>(v, i));
  }
}

// Write x, or add it to what is there in the accumulate type.
template <bool ADD, int N, class T> DEVICE void put(T* p, Acc<T> (&x)[N]) {
  if constexpr (ADD) {
    Acc<T> old[N];
    widen(load<N>(p), old);
    UNROLL for (int i = 0; i < N; ++i) x[i] += old[i];
  }
  Vec<T, N> v;
  narrow(x, v);
  store<N>(p, v);
}

// The same where the array may be of another type than others of T: of the accumulate type, at an
// address that is a multiple of as many bytes as N elements of T have, or of a narrower one.
template <class T, bool ADD, int N, class R> DEVICE void put_total(R* p, Acc<T> (&x)[N]) {
  if constexpr (sizeof(R) <= sizeof(T)) {
    put<ADD>(p, x);
  } else {
    constexpr int STEP = greater(N / 2, 1);
    UNROLL for (int i = 0; i < N; i += STEP) {
      Acc<T> part[STEP];
      UNROLL for (int j = 0; j < STEP; ++j) part[j] = x[i + j];
      put<ADD>(p + i, part);
    }
  }
}

// One element of an array of T, or of the accumulate type where it is `wide`: losses of 16-bit
// values and their cotangents are.
template <class T> DEVICE Acc<T> widened(const T* p, i64 at, bool wide) {
  return wide ? reinterpret_cast<const Acc<T>*>(p)[at] : widen(p[at]);
}
template <class T> DEVICE void deliver_one(Acc<T> x, T* p, i64 at, bool wide) {
  if (wide) reinterpret_cast<Acc<T>*>(p)[at] = x;
  else narrow(x, p[at]);
}

// How each of several sums is delivered, two bits for each: added to what is there; in the
// accumulate type.
enum : int { ADDED = 1, WIDENED = 2 };
template <int HOW, class T> DEVICE void deliver(int k, T* p, i64 at, Acc<T> total) {
  const int how = HOW >> 2 * k & 3;
  Acc<T> x[1] = {total};
  if (how == 0) put<false>(p + at, x);
  if (how == ADDED) put<true>(p + at, x);
  if (how == WIDENED) put<false>(reinterpret_cast<Acc<T>*>(p) + at, x);
  if (how == (ADDED | WIDENED)) put<true>(reinterpret_cast<Acc<T>*>(p) + at, x);
}

}  // namespace baracuda
#endif
