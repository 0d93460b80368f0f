// Exponentials of many numbers beside the largest of them.
#pragma once
#include "math.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// e^(x - b) of many x: `rest` times what it gives for each.
template <class A> struct Near;
template <> struct Near<f64> {
  static constexpr f64 rest = 1;
  f64 b;
  DEVICE Near(f64 b) : b(b) {}
  static DEVICE bool takes(f64) { return true; }
  DEVICE f64 operator()(f64 x) const { return quick_exponential(x - b); }
};
// One multiplication and addition for each, and what rounding left of b for all.
template <> struct Near<f32> {
  f32 scaled, rest;
  DEVICE Near(f32 b) : scaled(b * LOG2_E), rest(exponential2(fused(-b, LOG2_E, scaled))) {}
  // Of numbers whose last place counts little.
  static DEVICE bool takes(f32 b) { return magnitude(b) < 1048576; }
  DEVICE f32 operator()(f32 x) const { return exponential2(fused(x, LOG2_E, -scaled)); }
};

// e^(d/temperature) of differences d, which come first: a small temperature would magnify what
// rounding took of products.
template <class A> struct Cooled {
  A cool, rate;
  DEVICE Cooled(f64 temperature)
      : cool(A(1) / A(temperature)), rate(sizeof(A) == 8 ? cool : cool * A(LOG2_E)) {}
  DEVICE A operator()(A d) const {
    if constexpr (sizeof(A) == 8) return quick_exponential(d * rate);
    else return exponential2(d * rate);
  }
};

// tanh x to a few units in the last place of x or, where that is more, of 1.
HD f64 quick_hyperbolic_tangent(f64 x) { return tanh(x); }
HD f32 quick_hyperbolic_tangent(f32 x) {
  const f32 size = magnitude(x), square = x * x, e = quick_exponential(-2 * size);
  f32 series = fused(square, 0.0218694885f, -0.0539682540f);
  series = fused(fused(series, square, 0.1333333333f), square, -0.3333333333f);
  const f32 far = (1 - e) * reciprocal(1 + e);
  return size < 0.25f ? fused(x * square, series, x) : x < 0 ? -far : far;
}

// The largest of all, NaN if one of them is.
template <class T, int V, int M> DEVICE Acc<T> largest(const Vec<T, V> (&v)[M]) {
  Acc<T> most = widen(v[0], 0);
  if constexpr (sizeof(T) == 2) {
    u32 pair = v[0].pair[0];
    UNROLL for (int k = 0; k < M; ++k) {
      UNROLL for (int i = 0; i < V / 2; ++i) pair = larger_pair(pair, v[k].pair[i], T{});
    }
    const Vec<T, 2> both{{pair}};
    most = larger(widen(both, 0), widen(both, 1));
  } else {
    UNROLL for (int k = 0; k < M; ++k) {
      UNROLL for (int i = 0; i < V; ++i) most = larger(most, widen(v[k], i));
    }
  }
  return most;
}

}  // namespace baracuda
#endif
