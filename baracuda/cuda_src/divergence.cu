// Losses of probabilities. Inputs are (x, target), with the cotangent before them backward, and the
// weights of elements (Given1) and of positive targets (Given2) after them.
#include "common/elementwise.cuh"
#include "common/math.cuh"
#include "common/total.cuh"

namespace baracuda {

// As torch: no logarithm is below -100. In f32 that of a subnormal is -100 too.
template <class A> struct BinaryCrossEntropy {
  static constexpr int inputs = 2, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[2], A (&y)[1]) const {
    // The lesser of the two probabilities takes the logarithm that may be large, and its weight.
    const A rest = 1 - x[0];
    const bool high = x[0] > A(0.5);
    const A less = high ? rest : x[0], weight = high ? 1 - x[1] : x[1];
    const A halvings = larger(logarithm2(less), A(-144.26950408889634));
    const A small = logarithm_1p<QUICK>(-less);
    y[0] = fused(weight, fused(halvings, A(-0.69314718055994531), small), -small);
  }
};

template <class A> struct BinaryCrossEntropyBackward {
  static constexpr int inputs = 3, outputs = 1;
  HD void operator()(const A (&x)[3], A (&d)[1]) const {
    d[0] = x[0] * ((x[1] - x[2]) / larger((1 - x[1]) * x[1], A(1e-12)));
  }
};

template <class A> struct BinaryCrossEntropyWithLogits {
  static constexpr int inputs = 2, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[2], A (&y)[1]) const {
    // Nothing cancels where the logit is right.
    const A linear = (A(x[0] > 0) - x[1]) * x[0];
    y[0] = linear + logarithm_1p_exponential<QUICK>(-magnitude(x[0]));
  }
};

template <class A> struct BinaryCrossEntropyWithLogitsBackward {
  static constexpr int inputs = 3, outputs = 1;
  HD void operator()(const A (&x)[3], A (&d)[1]) const {
    d[0] = x[0] * (sigmoid(x[1]).first - x[2]);
  }
};

template <class A> struct BinaryCrossEntropyWithLogitsGiven2 {
  static constexpr int inputs = 3, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[3], A (&y)[1]) const {
    const bool up = x[0] > 0;
    const A off = 1 - x[1], on = x[1] * x[2];
    const A linear = (up ? off : -on) * x[0];
    y[0] = fused(off + on, logarithm_1p_exponential<QUICK>(-magnitude(x[0])), linear);
  }
};

// Of positive terms, so that the slope of a logit that is right keeps its digits.
template <class A> struct BinaryCrossEntropyWithLogitsBackwardGiven2 {
  static constexpr int inputs = 4, outputs = 1;
  HD void operator()(const A (&x)[4], A (&d)[1]) const {
    const Pair<A> s = sigmoid(x[1]);
    d[0] = x[0] * fused(1 - x[2], s.first, -(x[2] * x[3]) * s.second);
  }
};

// F, times the weight of an element, which is the input AT.
template <template <class> class F, class A, int AT> struct Weighted {
  static constexpr int inputs = F<A>::inputs + 1, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[inputs], A (&y)[1]) const {
    A from[inputs - 1];
    UNROLL for (int i = 0; i < inputs - 1; ++i) from[i] = x[i + (i >= AT)];
    // Of two bytes where it is to be quick.
    evaluate<char[QUICK ? 2 : 4]>(F<A>{}, from, y);
    y[0] *= x[AT];
  }
};
template <class A> using BinaryCrossEntropyGiven1 = Weighted<BinaryCrossEntropy, A, 2>;
template <class A>
using BinaryCrossEntropyBackwardGiven1 = Weighted<BinaryCrossEntropyBackward, A, 3>;
template <class A>
using BinaryCrossEntropyWithLogitsGiven1 = Weighted<BinaryCrossEntropyWithLogits, A, 2>;
template <class A>
using BinaryCrossEntropyWithLogitsBackwardGiven1 =
    Weighted<BinaryCrossEntropyWithLogitsBackward, A, 3>;
template <class A>
using BinaryCrossEntropyWithLogitsGiven3 =
    Weighted<BinaryCrossEntropyWithLogitsGiven2, A, 2>;
template <class A>
using BinaryCrossEntropyWithLogitsBackwardGiven3 =
    Weighted<BinaryCrossEntropyWithLogitsBackwardGiven2, A, 3>;

// The target is a probability or, where `log_target` is not 0, the logarithm of one.
template <class A> struct KlDiv {
  static constexpr int inputs = 2, outputs = 1;
  f64 log_target;

  template <bool QUICK = false> HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A t = x[1];
    if (log_target != 0) {
      y[0] = exponential(t) * (t - x[0]);
    } else {
      y[0] = fused(t, bounded_logarithm<QUICK>(t), -t * x[0]);
    }
  }
};

template <class A> struct KlDivBackward {
  static constexpr int inputs = 3, outputs = 1;
  f64 log_target;

  HD void operator()(const A (&x)[3], A (&d)[1]) const {
    d[0] = -x[0] * (log_target != 0 ? exponential(x[2]) : x[2]);
  }
};

}  // namespace baracuda
