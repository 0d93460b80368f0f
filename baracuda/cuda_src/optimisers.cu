// Steps of optimisers. The first input is the parameter, the second its gradient; states follow,
// and come out in the same order. A `Copy` functor returns the new parameter once more: its last
// output is stored in the dtype of the gradient.
//
// A functor is made ready once by each thread. Differences from 1 are formed in float64: with beta2
// = 0.999 in float32, 1 - beta2 would be off by 3e-5 of itself. A `StochasticRounding` functor is
// the plain one whose new parameter is rounded by random words.
#include "common/lists.cuh"
#include "common/math.cuh"
#include "common/philox.cuh"

namespace baracuda {

// 1 - beta^step, from 1 - beta. The power itself would cancel in float32, and take longer in
// float64 than the memory of an element.
template <class A> HD A correction(A rest, i64 step) { return -expm1(A(step) * log1p(-rest)); }

// The inputs as they are, in the places of the outputs.
template <class A, int IN, int OUT> HD void kept(const A (&in)[IN], A (&out)[OUT]) {
  out[0] = in[0];
  UNROLL for (int k = 2; k < IN; ++k) out[k - 1] = in[k];
  if (OUT == IN) out[OUT - 1] = in[0];
}

template <class F> struct Rounded : F {
  static constexpr int rounds = 0;
  struct Ready : decltype(F().ready()), Stream {};
  HD Ready ready() const { return {F::ready(), F::random}; }
};

template <class A, bool DECOUPLED, bool ROUNDED> struct AdamStep {
  static constexpr int inputs = 4, outputs = 3 + ROUNDED;
  f64 lr, beta1, beta2, eps, weight_decay;
  i64 step;
  f64 grad_scale, found_inf;
  Stream random;

  struct Ready {
    A unscale, decay, keep1, rest1, keep2, rest2, rate, unit, eps;
    bool skip;

    HD void operator()(const A (&in)[4], A (&out)[outputs]) const {
      if (skip) return kept(in, out);
      const A p = in[0], scaled = in[1] * unscale;
      const A g = DECOUPLED ? scaled : fused(decay, p, scaled);
      out[1] = fused(keep1, in[2], rest1 * g);
      out[2] = fused(keep2, in[3], rest2 * (g * g));
      const A by = quick_ratio(out[1], fused(square_root(out[2]), unit, eps));
      out[0] = fused(-rate, by, DECOUPLED ? decay * p : p);
      if (ROUNDED) out[outputs - 1] = out[0];
    }
  };

  HD Ready ready() const {
    const A rest1 = A(1 - beta1), rest2 = A(1 - beta2);
    const f64 decay = DECOUPLED ? fused(-lr, weight_decay, 1.0) : weight_decay;
    return {
        A(1 / grad_scale), A(decay), A(beta1), rest1, A(beta2), rest2,
        A(lr) / correction(rest1, step), 1 / square_root(correction(rest2, step)), A(eps),
        found_inf != 0};
  }
};
template <class A> using Adam = AdamStep<A, false, false>;
template <class A> using AdamStochasticRounding = Rounded<Adam<A>>;
template <class A> using AdamCopy = AdamStep<A, false, true>;
template <class A> using Adamw = AdamStep<A, true, false>;
template <class A> using AdamwStochasticRounding = Rounded<Adamw<A>>;
template <class A> using AdamwCopy = AdamStep<A, true, true>;

template <class A, bool MOMENTUM, bool ROUNDED> struct SgdStep {
  static constexpr int inputs = 2 + MOMENTUM, outputs = 1 + MOMENTUM + ROUNDED;
  f64 lr, momentum, dampening, weight_decay, nesterov, grad_scale, found_inf;
  Stream random;

  struct Ready {
    A unscale, decay, momentum, rest, rate;
    bool nesterov, skip;

    HD void operator()(const A (&in)[inputs], A (&out)[outputs]) const {
      if (skip) return kept(in, out);
      A g = fused(decay, in[0], in[1] * unscale);
      if constexpr (MOMENTUM) {
        out[1] = fused(momentum, in[2], rest * g);
        g = nesterov ? fused(momentum, out[1], g) : out[1];
      }
      out[0] = fused(-rate, g, in[0]);
      if (ROUNDED) out[outputs - 1] = out[0];
    }
  };

  HD Ready ready() const {
    return {
        A(1 / grad_scale), A(weight_decay), A(momentum), A(1 - dampening), A(lr), nesterov != 0,
        found_inf != 0};
  }
};
template <class A> using Sgd = SgdStep<A, false, false>;
template <class A> using SgdStochasticRounding = Rounded<Sgd<A>>;
template <class A> using SgdCopy = SgdStep<A, false, true>;
template <class A> using SgdGiven1 = SgdStep<A, true, false>;
template <class A> using SgdGiven1StochasticRounding = Rounded<SgdGiven1<A>>;
template <class A> using SgdGiven1Copy = SgdStep<A, true, true>;

template <class A, bool ROUNDED> struct LionStep {
  static constexpr int inputs = 3, outputs = 2 + ROUNDED;
  f64 lr, beta1, beta2, weight_decay, grad_scale, found_inf;
  Stream random;

  struct Ready {
    A unscale, decay, keep1, rest1, keep2, rest2, rate;
    bool skip;

    HD void operator()(const A (&in)[3], A (&out)[outputs]) const {
      if (skip) return kept(in, out);
      const A g = in[1] * unscale, c = fused(keep1, in[2], rest1 * g);
      const A sign = c == c ? A(c > 0) - A(c < 0) : c;
      out[0] = fused(-rate, sign, decay * in[0]);
      out[1] = fused(keep2, in[2], rest2 * g);
      if (ROUNDED) out[outputs - 1] = out[0];
    }
  };

  HD Ready ready() const {
    return {
        A(1 / grad_scale), A(fused(-lr, weight_decay, 1.0)), A(beta1), A(1 - beta1), A(beta2),
        A(1 - beta2), A(lr), found_inf != 0};
  }
};
template <class A> using Lion = LionStep<A, false>;
template <class A> using LionStochasticRounding = Rounded<Lion<A>>;
template <class A> using LionCopy = LionStep<A, true>;

template <class A> struct Ema {
  static constexpr int inputs = 2, outputs = 1;
  f64 decay;

  struct Ready {
    A rest;
    HD void operator()(const A (&x)[2], A (&y)[1]) const { y[0] = fused(rest, x[1] - x[0], x[0]); }
  };

  HD Ready ready() const { return {A(1 - decay)}; }
};

}  // namespace baracuda
