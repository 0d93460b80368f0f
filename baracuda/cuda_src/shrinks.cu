// Activations that take something off.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Hardshrink {
  static constexpr int inputs = 1, outputs = 1;
  f64 lambd;

  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    const A v = x[0];
    y[0] = v >= A(-lambd) && v <= A(lambd) ? A(0) : v;
  }
};

template <class A> struct HardshrinkBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 lambd;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x < A(-lambd) || x > A(lambd) ? dy : A(0);
  }
};

template <class A> struct Softshrink {
  static constexpr int inputs = 1, outputs = 1;
  f64 lambd;

  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    const A v = x[0], l = A(lambd);
    y[0] = v >= -l && v <= l ? A(0) : v > 0 ? v - l : v + l;
  }
};

template <class A> struct SoftshrinkBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 lambd;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x < A(-lambd) || x > A(lambd) ? dy : A(0);
  }
};

// v - tanh(v). In f32 below 1 in size (0.6 where that is enough) by a polynomial to 2^-23,
// elsewhere by an exponential. In f64 below 1 by Lambert's continued fraction, a level for each odd
// number down to 3.
template <bool QUICK> HD f32 tanh_shrunk(f32 v) {
  const f32 size = magnitude(v), square = v * v;
  f32 p = 0.006285039242357016f;
  if constexpr (QUICK) {
    p = fused(p, square, -0.021124165505170822f);
    p = fused(p, square, 0.05387759581208229f);
    p = fused(p, square, -0.13332952558994293f);
  } else {
    p = fused(0.00042106828186661005f, square, -0.002511650091037154f);
    p = fused(p, square, 0.008220379240810871f);
    p = fused(p, square, -0.02166096679866314f);
    p = fused(p, square, 0.05393502861261368f);
    p = fused(p, square, -0.1333313137292862f);
  }
  const f32 near = size * square * fused(p, square, 0.3333333134651184f);
  const f32 far = fused(reciprocal(1 + quick_exponential(2 * size)), 2.0f, size - 1);
  return copysignf(size < (QUICK ? 0.6f : 1.0f) ? near : far, v);
}
template <bool QUICK> HD f64 tanh_shrunk(f64 v) {
  constexpr int levels = 9;
  const f64 square = v * v;
  f64 num = square, den = 2 * levels + 1;
  UNROLL for (int odd = 2 * levels - 1; odd > 1; odd -= 2) {
    const f64 below = den;
    den = fused(f64(odd), den, num);
    num = square * below;
  }
  return magnitude(v) < 1 ? v * (num * reciprocal(den + num)) : v - hyperbolic_tangent(v);
}

template <class A> struct Tanhshrink {
  static constexpr int inputs = 1, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = tanh_shrunk<QUICK>(x[0]);
  }
};

template <class A> struct TanhshrinkBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A slope = hyperbolic_tangent(in[1]);
    d[0] = in[0] * (slope * slope);
  }
};

}  // namespace baracuda
