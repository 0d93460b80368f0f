// PReLU. The last input is the slope of a channel; NaN is not above 0.
#include "common/channels.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Prelu {
  static constexpr int inputs = 2, outputs = 1, sums = 0;
  HD void operator()(const A (&x)[2], A (&y)[1]) const { y[0] = x[0] > 0 ? x[0] : x[1] * x[0]; }
};

// The second output is what an element has of the slope's gradient.
template <class A> struct PreluBackward {
  static constexpr int inputs = 3, outputs = 2, sums = 1;
  HD void operator()(const A (&in)[3], A (&d)[2]) const {
    const A dy = in[0], x = in[1], weight = in[2];
    d[0] = x > 0 ? dy : weight * dy;
    d[1] = x > 0 ? A(0) : x * dy;
  }
};

}  // namespace baracuda
