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

// Below 1 in size by Lambert's continued fraction, a level for each odd number down to 3.
template <class A> struct Tanhshrink {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    constexpr int levels = sizeof(A) == 4 ? 5 : 9;
    const A v = x[0], square = v * v;
    A num = square, den = 2 * levels + 1;
    UNROLL for (int odd = 2 * levels - 1; odd > 1; odd -= 2) {
      const A below = den;
      den = fused(A(odd), den, num);
      num = square * below;
    }
    y[0] = magnitude(v) < 1 ? v * (num * reciprocal(den + num)) : v - hyperbolic_tangent(v);
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
