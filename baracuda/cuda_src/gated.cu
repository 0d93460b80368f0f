// Gated activations: y = a * act(b). Inputs are (a, b), with the gradient before them backward.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct Glu {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&x)[2], A (&y)[1]) const { y[0] = x[0] * sigmoid(x[1]).first; }
};

template <class A> struct GluBackward {
  static constexpr int inputs = 3, outputs = 2;
  HD void operator()(const A (&x)[3], A (&d)[2]) const {
    const A dy = x[0], a = x[1];
    Pair<A> s = sigmoid(x[2]);
    d[0] = dy * s.first;
    d[1] = dy * a * (s.first * s.second);
  }
};

// b <= 0 is false for NaN, which therefore passes, as in a * relu(b).
template <class A> struct Reglu {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A b = x[1];
    y[0] = x[0] * (b <= 0 ? A(0) : b);
  }
};

template <class A> struct RegluBackward {
  static constexpr int inputs = 3, outputs = 2;
  HD void operator()(const A (&x)[3], A (&d)[2]) const {
    const A dy = x[0], a = x[1], b = x[2];
    const bool closed = b <= 0;
    d[0] = dy * (closed ? A(0) : b);
    d[1] = closed ? A(0) : dy * a;
  }
};

template <class A> struct Swiglu {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A b = x[1];
    y[0] = x[0] * (b * sigmoid(b).first);
  }
};

template <class A> struct SwigluBackward {
  static constexpr int inputs = 3, outputs = 2;
  HD void operator()(const A (&x)[3], A (&d)[2]) const {
    const A dy = x[0], a = x[1], b = x[2];
    Pair<A> s = sigmoid(b);
    d[0] = dy * (b * s.first);
    d[1] = dy * a * (s.first * fused(b, s.second, A(1)));
  }
};

template <class A, Pair<A> (*weight)(A)> struct GegluOf {
  static constexpr int inputs = 2, outputs = 1;
  HD void operator()(const A (&x)[2], A (&y)[1]) const {
    const A b = x[1];
    y[0] = x[0] * (b * weight(b).first);
  }
};

template <class A, Pair<A> (*weight)(A)> struct GegluOfBackward {
  static constexpr int inputs = 3, outputs = 2;
  HD void operator()(const A (&x)[3], A (&d)[2]) const {
    const A dy = x[0], a = x[1], b = x[2];
    Pair<A> w = weight(b);
    d[0] = dy * (b * w.first);
    d[1] = dy * a * fused(b, w.second, w.first);
  }
};

template <class A> struct Geglu : GegluOf<A, normal<A>> {};
template <class A> struct GegluTanh : GegluOf<A, normal_tanh<A>> {};
template <class A> struct GegluBackward : GegluOfBackward<A, normal<A>> {};
template <class A> struct GegluBackwardTanh : GegluOfBackward<A, normal_tanh<A>> {};

}  // namespace baracuda
