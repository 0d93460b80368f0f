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

template <class A, Pair<A> (*act)(A), Pair<A> (*quick)(A) = act> struct Gated {
  static constexpr int inputs = 2, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[2], A (&y)[1]) const {
    if constexpr (QUICK) y[0] = x[0] * quick(x[1]).first;
    else y[0] = x[0] * act(x[1]).first;
  }
};

template <class A, Pair<A> (*act)(A)> struct GatedBackward {
  static constexpr int inputs = 3, outputs = 2;
  HD void operator()(const A (&x)[3], A (&d)[2]) const {
    const A dy = x[0], a = x[1];
    Pair<A> v = act(x[2]);
    d[0] = dy * v.first;
    d[1] = dy * a * v.second;
  }
};

template <class A> struct Swiglu : Gated<A, silu<A>> {};
template <class A> struct SwigluBackward : GatedBackward<A, silu<A>> {};
template <class A> struct Geglu : Gated<A, gelu<A>, quick_gelu<A>> {};
template <class A> struct GegluBackward : GatedBackward<A, gelu<A>> {};
template <class A> struct GegluTanh : Gated<A, gelu_tanh<A>> {};
template <class A> struct GegluBackwardTanh : GatedBackward<A, gelu_tanh<A>> {};

}  // namespace baracuda
