// Storage types, the type each accumulates in, and what NVRTC and host compilers spell apart.
//
// No CUDA header is included: NVRTC parses cuda_fp16.h for longer than it compiles most kernels.
#pragma once

#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#define DEVICE __device__ __forceinline__
#define APART static __host__ __device__ __noinline__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#else
#include <cmath>
#include <cstring>
#define HD inline
#define APART inline
#define UNROLL
#define ROLLED
#endif

namespace baracuda {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f32 = float;
using f64 = double;

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
// What gather moves complex128 as.
struct alignas(16) u128 {
  u64 low, high;
};

// The type in which formulas are evaluated and sums are kept.
template <class T> struct Accumulate;
template <> struct Accumulate<f16> { using type = f32; };
template <> struct Accumulate<bf16> { using type = f32; };
template <> struct Accumulate<f32> { using type = f32; };
template <> struct Accumulate<f64> { using type = f64; };
template <class T> using Acc = typename Accumulate<T>::type;

template <bool FIRST, class A, class B> struct Either { using type = A; };
template <class A, class B> struct Either<false, A, B> { using type = B; };

template <class I> struct Unsigned;
template <> struct Unsigned<i32> { using type = u32; };
template <> struct Unsigned<i64> { using type = u64; };

// What a functor makes of elements of T. One whose call is a template is QUICK for those of 16
// bits, in which arithmetic would take longer than memory: off by a few thousandths of a unit in
// their last place, before it is rounded to them.
template <class T, class F, class X, class Y>
HD auto chosen(const F& f, const X& x, Y& y, int) -> decltype(f.template operator()<false>(x, y)) {
  f.template operator()<sizeof(T) == 2>(x, y);
}
template <class T, class F, class X, class Y> HD void chosen(const F& f, const X& x, Y& y, long) {
  f(x, y);
}
template <class T, class F, class X, class Y> HD void evaluate(const F& f, const X& x, Y& y) {
  chosen<T>(f, x, y, 0);
}

// The arrays of a kernel, whose addresses every call fills in.
template <class T, int IN, int OUT> struct Operands {
  const T* in[IN];
  T* out[OUT];
};
template <class T, int IN> struct Operands<T, IN, 0> {
  const T* in[IN];
};

HD constexpr int greater(int a, int b) { return a > b ? a : b; }
HD constexpr int lesser(int a, int b) { return a < b ? a : b; }
template <class T> HD constexpr T lesser(T a, T b) { return a < b ? a : b; }
HD constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
HD constexpr int ones(int x) { return x ? (x & 1) + ones(x >> 1) : 0; }

}  // namespace baracuda

// An entry point of a schedule. Its one parameter is laid out by the host, which states the size
// it has packed; the constant bank lets every thread index into it. RESIDENT blocks of a schedule
// fit a multiprocessor at once: that is what bounds the registers.
#define KERNEL(symbol, threads, bytes, ...)                                                     \
  using symbol##_schedule = __VA_ARGS__;                                                        \
  static_assert(sizeof(typename symbol##_schedule::Args) == bytes, "the host packs otherwise"); \
  extern "C" __global__ void __launch_bounds__(threads, symbol##_schedule::RESIDENT)            \
      symbol(const __grid_constant__ typename symbol##_schedule::Args args) {                   \
    symbol##_schedule::run(args);                                                               \
  }
// The same in clusters of so many blocks.
#define KERNEL_IN_CLUSTERS(symbol, threads, bytes, cluster, ...)                                \
  using symbol##_schedule = __VA_ARGS__;                                                        \
  static_assert(sizeof(typename symbol##_schedule::Args) == bytes, "the host packs otherwise"); \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1)                                    \
      __launch_bounds__(threads, symbol##_schedule::RESIDENT)                                   \
      symbol(const __grid_constant__ typename symbol##_schedule::Args args) {                   \
    symbol##_schedule::run(args);                                                               \
  }
