// Activations of two straight pieces. NaN is not below anything, and so passes.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Relu {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = x[0] <= 0 ? A(0) : x[0]; }
};

template <class A> struct ReluBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], y = in[1];
    d[0] = y <= 0 ? A(0) : dy;
  }
};

template <class A> struct LeakyRelu {
  static constexpr int inputs = 1, outputs = 1;
  f64 negative_slope;

  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = x[0] > 0 ? x[0] : x[0] * A(negative_slope);
  }
};

template <class A> struct LeakyReluBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 negative_slope;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x > 0 ? dy : dy * A(negative_slope);
  }
};

template <class A> struct Threshold {
  static constexpr int inputs = 1, outputs = 1;
  f64 threshold, value;

  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = x[0] <= A(threshold) ? A(value) : x[0];
  }
};

template <class A> struct ThresholdBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 threshold, value;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x <= A(threshold) ? A(0) : dy;
  }
};

}  // namespace baracuda
