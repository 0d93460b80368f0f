// Losses by distance. Inputs are (x, target), with the cotangent before them backward.
#include "common/elementwise.cuh"
#include "common/math.cuh"
#include "common/total.cuh"

namespace baracuda {

template <class A> struct MseLoss {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A difference = x[0] - x[1];
    y[0] = difference * difference;
  }
};

template <class A> struct MseLossBackward {
  static constexpr int inputs = 3, outputs = 1;
  HD void operator()(const A (&x)[3], A (&d)[1]) const { d[0] = x[0] * (2 * (x[1] - x[2])); }
};

template <class A> struct L1Loss {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&x)[2], A (&y)[1]) const { y[0] = magnitude(x[0] - x[1]); }
};

// The sign of what is beyond `most`, else what there is in between; NaN passes.
template <class A> HD A held(A x, A most, A between) {
  return x > most ? A(1) : x < -most ? A(-1) : between;
}

template <class A> struct L1LossBackward {
  static constexpr int inputs = 3, outputs = 1;
  HD void operator()(const A (&x)[3], A (&d)[1]) const {
    const A difference = x[1] - x[2];
    d[0] = x[0] * held(difference, A(0), difference);
  }
};

template <class A> struct SmoothL1Loss {
  static constexpr int inputs = 2, outputs = 1;
  f64 beta;

  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A distance = magnitude(x[0] - x[1]), end = A(beta),
            half = end > 0 ? A(0.5) * reciprocal(end) : end;
    const A near = distance < end ? distance : end;
    y[0] = fused(near * near, half, distance - near);
  }
};

template <class A> struct SmoothL1LossBackward {
  static constexpr int inputs = 3, outputs = 1;
  f64 beta;

  HD void operator()(const A (&x)[3], A (&d)[1]) const {
    const A difference = x[1] - x[2], end = A(beta), inverse = end > 0 ? reciprocal(end) : A(1);
    d[0] = x[0] * held(difference, end, difference * inverse);
  }
};

template <class A> struct HuberLoss {
  static constexpr int inputs = 2, outputs = 1;
  f64 delta;

  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A distance = magnitude(x[0] - x[1]), end = A(delta);
    const A near = distance < end ? distance : end;
    y[0] = fused(distance - near, end, near * near * A(0.5));
  }
};

template <class A> struct HuberLossBackward {
  static constexpr int inputs = 3, outputs = 1;
  f64 delta;

  HD void operator()(const A (&x)[3], A (&d)[1]) const {
    const A difference = x[1] - x[2], end = A(delta);
    d[0] = x[0] * (difference > end ? end : difference < -end ? -end : difference);
  }
};

}  // namespace baracuda
