// Activations that stop rising, in straight pieces.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Relu6 {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = clipped(x[0], A(0), A(6)); }
};

template <class A> struct Relu6Backward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], y = in[1];
    d[0] = y > 0 && y < 6 ? dy : A(0);
  }
};

template <class A> struct Hardtanh {
  static constexpr int inputs = 1, outputs = 1;
  f64 min_val, max_val;

  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = clipped(x[0], A(min_val), A(max_val));
  }
};

template <class A> struct HardtanhBackward {
  static constexpr int inputs = 2, outputs = 1;
  f64 min_val, max_val;

  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x > A(min_val) && x < A(max_val) ? dy : A(0);
  }
};

template <class A> struct Hardsigmoid {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = clipped(x[0] + 3, A(0), A(6)) * A(1.0 / 6);
  }
};

template <class A> struct HardsigmoidBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x > -3 && x < 3 ? dy * A(1.0 / 6) : A(0);
  }
};

template <class A> struct Hardswish {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = x[0] * (clipped(x[0] + 3, A(0), A(6)) * A(1.0 / 6));
  }
};

template <class A> struct HardswishBackward {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&in)[2], A (&d)[1]) const {
    const A dy = in[0], x = in[1];
    d[0] = x <= -3 ? A(0) : x >= 3 ? dy : dy * fused(x, A(1.0 / 3), A(0.5));
  }
};

}  // namespace baracuda
