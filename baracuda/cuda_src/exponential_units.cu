// Activations that are exponential below 0.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

// `above` of x above 0, elsewhere `below` of the exponential less one; and the slope. Both sides
// are evaluated: branches would cost more, and each would convert the run-time values.
template <class A> HD A bent(A x, A above, A below, A rate) {
  const A straight = above * x, curve = below * exponential_less_one(x * rate);
  return x > 0 ? straight : curve;
}
template <class A> HD A bent_slope(A x, A above, A below, A rate) {
  return x > 0 ? above : below * exponential(x * rate);
}
constexpr f64 SELU_SCALE = 1.0507009873554804934, SELU_DEPTH = 1.7580993408473768600;

template <class A> struct Elu {
  static constexpr int inputs = 1, outputs = 1;
  f64 alpha;

  HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = bent(x[0], A(1), A(alpha), A(1)); }
};

template <class A> struct EluBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 alpha;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = dy * bent_slope(x, A(1), A(alpha), A(1));
  }
};

template <class A> struct Selu {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = bent(x[0], A(SELU_SCALE), A(SELU_DEPTH), A(1));
  }
};

template <class A> struct SeluBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = dy * bent_slope(x, A(SELU_SCALE), A(SELU_DEPTH), A(1));
  }
};

template <class A> struct Celu {
  static constexpr int inputs = 1, outputs = 1;
  f64 alpha;

  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    const A depth = A(alpha), rate = reciprocal(depth);
    y[0] = bent(x[0], A(1), depth, magnitude(rate));
    // Of a positive argument exp(t) - 1 = -exp(t) (exp(-t) - 1), of which no factor cancels.
    if (depth < 0 && !(x[0] > 0)) y[0] *= -exponential(x[0] * rate);
  }
};

template <class A> struct CeluBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 alpha;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = dy * bent_slope(x, A(1), A(1), reciprocal(A(alpha)));
  }
};

template <class A> struct Softplus {
  static constexpr int inputs = 1, outputs = 1;
  f64 beta, threshold;

  template <bool QUICK = false> HD void operator()(const A (&x)[1], A (&y)[1]) const {
    const A z = x[0] * A(beta), soft = softplus<QUICK>(z) * reciprocal(A(beta));
    y[0] = z > A(threshold) ? x[0] : soft;
  }
};

template <class A> struct SoftplusBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 beta, threshold;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], z = in[1] * A(beta);
    d[0] = z > A(threshold) ? dy : dy * sigmoid(z).first;
  }
};

}  // namespace baracuda
