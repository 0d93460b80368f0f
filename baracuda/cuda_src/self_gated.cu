// Activations that weigh their input by a function of it.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A, Pair<A> (*act)(A), Pair<A> (*quick)(A)> struct SelfGated {
  static constexpr int inputs = 1, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&x)[1], A (&y)[1]) const {
    if constexpr (QUICK) y[0] = quick(x[0]).first;
    else y[0] = act(x[0]).first;
  }
};

template <class A, Pair<A> (*act)(A), Pair<A> (*quick)(A) = act> struct SelfGatedBackward {
  static constexpr int inputs = 2, outputs = 1;
  template <bool QUICK = false> HD void operator()(const A (&in)[2], A (&d)[1]) const {
    if constexpr (QUICK) d[0] = in[0] * quick(in[1]).second;
    else d[0] = in[0] * act(in[1]).second;
  }
};

template <class A> struct Silu : SelfGated<A, silu<A>, silu<A, true>> {};
template <class A> struct SiluBackward : SelfGatedBackward<A, silu<A>> {};
template <class A> struct Mish : SelfGated<A, mish<A>, mish<A, true>> {};
template <class A> struct MishBackward : SelfGatedBackward<A, mish<A>> {};
template <class A> struct Gelu : SelfGated<A, gelu<A>, quick_gelu<A>> {};
template <class A> struct GeluBackward : SelfGatedBackward<A, gelu<A>, quick_gelu<A>> {};
template <class A> struct GeluTanh : SelfGated<A, gelu_tanh<A>, gelu_tanh<A, true>> {};
template <class A> struct GeluBackwardTanh : SelfGatedBackward<A, gelu_tanh<A>> {};

}  // namespace baracuda
