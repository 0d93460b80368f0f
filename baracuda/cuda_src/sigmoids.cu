// Activations of the shape of an S, and the logarithm of one.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Sigmoid {
  static constexpr int inputs = 1, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = sigmoid<QUICK>(x[0]).first;
  }
};

template <class A> struct SigmoidBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], y = in[1];
    d[0] = dy * (y * (1 - y));
  }
};

template <class A> struct LogSigmoid {
  static constexpr int inputs = 1, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = -softplus<QUICK>(-x[0]);
  }
};

template <class A> struct LogSigmoidBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = dy * sigmoid(x).second;
  }
};

template <class A> struct Tanh {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = hyperbolic_tangent(x[0]); }
};

template <class A> struct TanhBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], y = in[1];
    d[0] = dy * fused(-y, y, A(1));
  }
};

template <class A> struct Softsign {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = ratio(x[0], 1 + magnitude(x[0])); }
};

template <class A> struct SoftsignBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A share = reciprocal(1 + magnitude(in[1]));
    d[0] = in[0] * (share * share);
  }
};

}  // namespace baracuda
