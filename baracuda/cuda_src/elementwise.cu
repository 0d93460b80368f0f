// Elementwise ops of several arrays. Run-time values arrive in float64.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Lerp {
  static constexpr int inputs = 2, outputs = 1;
  f64 weight;

  // From the nearer end, so that both are met exactly.
  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A a = x[0], b = x[1];
    y[0] = weight < 0.5 ? fused(b - a, A(weight), a) : fused(a - b, A(1 - weight), b);
  }
};

template <class A> struct LerpBackward {
  static constexpr int inputs = 1, outputs = 2;
  f64 weight;

  HD void operator()(const A (&x)[1], A (&d)[2]) const {
    d[0] = x[0] * A(1 - weight);
    d[1] = x[0] * A(weight);
  }
};

}  // namespace baracuda
