// Softmax of rows, its logarithm, and the gradients of both from the results; the logarithm of the
// sum of exponentials, and its gradient from the rows.
#include "common/columns.cuh"
#include "common/rows.cuh"

namespace baracuda {

// What elements are multiplied by: a run-time value, or nothing.
struct Scaled {
  f64 scale;
};
struct Unscaled {
  static constexpr f64 scale = 1;
};

// The largest element that is kept, halved and with the sign of the scale, and the sum of the
// exponentials of all beside it. What is subtracted is no product: its rounding would be as large
// as the exponents of large elements. Halves, for a difference of two does not overflow.
// A logarithm takes twice() as well: from it the rate is made, for which there is no register else.
template <class A, bool LOGARITHM, class SCALE = Scaled> struct Exponentials : SCALE {
  static constexpr int loads = 1, inputs = 1, columns = 0, outputs = 1, sums = 0, stages = ONCE;
  using State = Several<A, 2>;
  struct Known {
    A most, sum;
  };

  HD A half() const {
    const A factor = A(this->scale);
    return factor > 0 ? A(0.5) : factor < 0 ? A(-0.5) : factor;
  }
  HD A twice() const { return 2 * magnitude(A(this->scale)); }
  // e^(twice() d) is `power` of d times this: not 0, which -inf may be multiplied by.
  HD A rate() const {
    constexpr A unit = sizeof(A) == 4 ? A(LOG2_E) : A(1);
    if constexpr (LOGARITHM) return twice() == 0 ? A(1) : twice() * unit;
    const A rate = magnitude(A(this->scale)) * (2 * unit);
    return rate == 0 ? A(1) : rate;
  }
  static HD f32 power(f32 x) { return exponential2(x); }
  static HD f64 power(f64 x) { return quick_exponential(x); }
  static HD A nothing() { return -A(infinity()); }
  // Where all are -inf, or nothing is kept, the exponentials are those of -inf, and their sum
  // counts as 1.
  static HD A base(A most) { return most == nothing() ? A(0) : most; }
  template <int> static HD State start() { return {nothing(), A(0)}; }
  struct Joiner {
    A rate;

    HD State operator()(const State& a, const State& b) const {
      const bool first = a.at[0] >= b.at[0];
      const A low = first ? b.at[0] : a.at[0], most = larger(a.at[0], b.at[0]);
      const A less = first ? b.at[1] : a.at[1], more = first ? a.at[1] : b.at[1];
      return {most, fused(less, power((low - base(most)) * rate), more)};
    }
  };
  HD Joiner joiner() const { return {rate()}; }
  // Columns have no register for a joiner that is kept.
  template <int> HD State join(const State& a, const State& b) const { return joiner()(a, b); }
  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[1][N], const A (&)[1][N], u32 keep) const {
    const A factor = half(), rate = this->rate();
    A most = s.at[0];
    UNROLL for (int i = 0; i < N; ++i) {
      most = larger(most, keep >> i & 1 ? x[0][i] * factor : nothing());
    }
    const A from = base(most);
    A sum = s.at[1] * power((s.at[0] - from) * rate);
    UNROLL for (int i = 0; i < N; ++i) {
      const A e = power(fused(x[0][i], factor, -from) * rate);
      sum += keep >> i & 1 ? e : A(0);
    }
    s = {most, sum};
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    known.most = base(s.at[0]);
    known.sum = s.at[1] == 0 ? A(1) : s.at[1];
  }
};

template <class A, class SCALE = Scaled> struct Shares : Exponentials<A, false, SCALE> {
  using typename Exponentials<A, false, SCALE>::Known;
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[1][N], const A (&)[1][N], u32 keep, A (&y)[1][N]) const {
    const A factor = this->half(), rate = this->rate(), inverse = 1 / known.sum;
    UNROLL for (int i = 0; i < N; ++i) {
      const A e = this->power(fused(x[0][i], factor, -known.most) * rate);
      y[0][i] = keep >> i & 1 ? e * inverse : A(0);
    }
  }
};

template <class A, class SCALE = Scaled> struct LogShares : Exponentials<A, true, SCALE> {
  using typename Exponentials<A, true, SCALE>::Known;
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[1][N], const A (&)[1][N], u32 keep, A (&y)[1][N]) const {
    const A factor = this->half(), rate = this->twice(), log = logarithm(known.sum);
    UNROLL for (int i = 0; i < N; ++i) {
      const A d = fused(fused(x[0][i], factor, -known.most), rate, -log);
      y[0][i] = keep >> i & 1 ? d : this->nothing();
    }
  }
};

// Of products with a column added, which is -inf where an element does not count. Before the row
// that is multiplied a cotangent may come.
struct Factor {
  f64 factor;
};
template <class A, class F> struct Biased : Factor, F {
  static constexpr int columns = 1, last = F::inputs - 1;
  using typename F::Known;
  using typename F::State;

  template <int N>
  HD u32 add(
      const A (&x)[last + 1][N], const A (&bias)[2][N], u32 keep, A (&z)[last + 1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      UNROLL for (int k = 0; k < last; ++k) z[k][i] = x[k][i];
      z[last][i] = fused(x[last][i], A(factor), bias[0][i]);
      keep &= ~(u32(bias[0][i] == this->nothing()) << i);
    }
    return keep;
  }
  template <int S, int N>
  HD void take(
      State& s, const Known& known, const A (&x)[last + 1][N], const A (&bias)[2][N],
      u32 keep) const {
    A z[last + 1][N], none[1][N];
    keep = add(x, bias, keep, z);
    F::template take<S>(s, known, z, none, keep);
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[last + 1][N], const A (&bias)[2][N], u32 keep,
      A (&y)[1][N]) const {
    A z[last + 1][N], none[1][N];
    keep = add(x, bias, keep, z);
    F::finish(known, z, none, keep, y);
  }
};

// By the number of columns.
template <class A, int> struct Softmax : Shares<A> {};
template <class A> struct Softmax<A, 1> : Biased<A, Shares<A, Unscaled>> {};
template <class A, int> struct LogSoftmax : LogShares<A> {};
template <class A> struct LogSoftmax<A, 1> : Biased<A, LogShares<A, Unscaled>> {};

// Shares of which some are dropped.
template <class A, int COLUMNS> struct SoftmaxDropout : Softmax<A, COLUMNS>, Mask {
  using typename Softmax<A, COLUMNS>::Known;
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[1][N], const A (&bias)[COLUMNS + 1][N], u32 keep,
      A (&y)[1][N]) const {
    Softmax<A, COLUMNS>::finish(known, x, bias, keep, y);
    const A factor = this->template rise<A>();
    UNROLL for (int i = 0; i < N; ++i) y[0][i] = keep >> (N + i) & 1 ? y[0][i] * factor : A(0);
  }
};

// From the scores. The third number of a state is the sum of exponentials times the cotangents of
// shares.
template <class A, class SCALE> struct SharesBackward : Exponentials<A, false, SCALE>, Mask {
  static constexpr int loads = 2, inputs = 2;
  using Base = Exponentials<A, false, SCALE>;
  using State = Several<A, 3>;
  struct Known {
    A most, inverse, along;
  };

  template <int> static HD State start() { return {Base::nothing(), A(0), A(0)}; }
  struct Joiner {
    A rate;

    HD State operator()(const State& a, const State& b) const {
      const bool first = a.at[0] >= b.at[0];
      const A low = first ? b.at[0] : a.at[0], most = larger(a.at[0], b.at[0]);
      const A less = Base::power((low - Base::base(most)) * rate);
      const A here = first ? A(1) : less, there = first ? less : A(1);
      return {most, fused(a.at[1], here, b.at[1] * there), fused(a.at[2], here, b.at[2] * there)};
    }
  };
  HD Joiner joiner() const { return {this->rate()}; }
  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[2][N], const A (&)[1][N], u32 keep) const {
    const A factor = this->half(), rate = this->rate();
    A most = s.at[0];
    UNROLL for (int i = 0; i < N; ++i) {
      most = larger(most, keep >> i & 1 ? x[1][i] * factor : Base::nothing());
    }
    const A from = Base::base(most), less = Base::power((s.at[0] - from) * rate);
    A sum = s.at[1] * less, along = s.at[2] * less;
    UNROLL for (int i = 0; i < N; ++i) {
      const A e = Base::power(fused(x[1][i], factor, -from) * rate);
      sum += keep >> i & 1 ? e : A(0);
      along = fused(keep >> i & 1 ? e : A(0), keep >> (N + i) & 1 ? x[0][i] : A(0), along);
    }
    s = {most, sum, along};
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    const A inverse = s.at[1] == 0 ? A(1) : 1 / s.at[1];
    known = {Base::base(s.at[0]), inverse, s.at[2] * inverse};
  }
  // Both the cotangent and what is taken off it are scaled as what stays is.
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[2][N], const A (&)[1][N], u32 keep, A (&y)[1][N]) const {
    const A factor = this->half(), rate = this->rate();
    const A slope = this->template rise<A>() * A(this->scale);
    UNROLL for (int i = 0; i < N; ++i) {
      const A e = Base::power(fused(x[1][i], factor, -known.most) * rate) * known.inverse;
      const A g = keep >> (N + i) & 1 ? x[0][i] : A(0);
      y[0][i] = (keep >> i & 1 ? e : A(0)) * (g - known.along) * slope;
    }
  }
};

template <class A, int> struct SoftmaxDropoutBackward : SharesBackward<A, Scaled> {};
template <class A>
struct SoftmaxDropoutBackward<A, 1> : Biased<A, SharesBackward<A, Unscaled>> {
  using Base = Biased<A, SharesBackward<A, Unscaled>>;
  template <int N>
  HD void finish(
      const typename Base::Known& known, const A (&x)[2][N], const A (&bias)[2][N], u32 keep,
      A (&y)[1][N]) const {
    Base::finish(known, x, bias, keep, y);
    UNROLL for (int i = 0; i < N; ++i) y[0][i] *= A(this->factor);
  }
};

// A row has one result, as a loss does, and its cotangent. The largest is not replaced where it is
// infinite: then it is the result.
template <class A> struct SumOfExponentials : Exponentials<A, true, Unscaled> {
  static constexpr bool labelled = false;
  using typename Exponentials<A, true, Unscaled>::State;
  using typename Exponentials<A, true, Unscaled>::Known;
  template <int S> HD void settle(const State& s, A, Known& known) const {
    known.most = s.at[0];
    known.sum = s.at[1];
  }
};

template <class A, int> struct LogSumExp : SumOfExponentials<A> {
  using typename SumOfExponentials<A>::Known;
  static constexpr int outputs = 0;
  HD A cost(const Known& known, i64) const {
    const bool infinite = known.most == A(infinity());
    return infinite ? known.most : fused(this->twice(), known.most, logarithm(known.sum));
  }
};

template <class A, int> struct LogSumExpBackward : SumOfExponentials<A> {
  using typename SumOfExponentials<A>::Known;
  // From then on `sum` is what exponentials are multiplied by. Beside inf all others are 0, and
  // their sum is NaN.
  HD void pull(Known& known, i64, A dout) const {
    known.sum = known.most == A(infinity()) ? dout : dout / known.sum;
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[1][N], const A (&)[1][N], u32, A (&y)[1][N]) const {
    const A factor = this->half(), rate = this->rate();
    UNROLL for (int i = 0; i < N; ++i) {
      y[0][i] = this->power(fused(x[0][i], factor, -known.most) * rate) * known.sum;
    }
  }
};

// Inputs are dy and y.
template <class A> struct FromResult {
  static constexpr int loads = 2, inputs = 2, columns = 0, outputs = 1, sums = 0, stages = ONCE;
  using State = Several<A, 1>;
  struct Known {
    A along;
  };
  f64 scale;

  template <int> static HD State start() { return {}; }
  template <int> static HD State join(const State& a, const State& b) {
    return {a.at[0] + b.at[0]};
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    known.along = s.at[0];
  }
};

template <class A, int> struct SoftmaxBackward : FromResult<A> {
  using typename FromResult<A>::Known;
  using typename FromResult<A>::State;
  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[2][N], const A (&)[1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) s.at[0] = fused(x[0][i], x[1][i], s.at[0]);
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[2][N], const A (&)[1][N], u32, A (&y)[1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      y[0][i] = A(this->scale) * (x[1][i] * (x[0][i] - known.along));
    }
  }
};

// What is left out has the logarithm -inf, and no gradient.
template <class A, int> struct LogSoftmaxBackward : FromResult<A> {
  using typename FromResult<A>::Known;
  using typename FromResult<A>::State;
  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[2][N], const A (&)[1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) s.at[0] += x[1][i] == -A(infinity()) ? A(0) : x[0][i];
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[2][N], const A (&)[1][N], u32, A (&y)[1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      const A rest = fused(-quick_exponential(x[1][i]), known.along, x[0][i]);
      y[0][i] = x[1][i] == -A(infinity()) ? A(0) : A(this->scale) * rest;
    }
  }
};

}  // namespace baracuda
