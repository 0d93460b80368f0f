// Losses of rows by how far apart they are: x1 and x2, or anchor, positive and negative.
#include "common/rows.cuh"
#include "common/total.cuh"

namespace baracuda {

template <class A> struct Angle : Summed<A, 3> {
  static constexpr int loads = 2, inputs = 2, columns = 0, sums = 0, stages = ONCE;
  static constexpr bool labelled = true;
  using State = Several<A, 3>;
  struct Known {
    A cosine, first, second;  // and one over the lengths
  };
  f64 margin;

  template <int S, int N>
  HD void take(State& s, const Known&, const A (&x)[2][N], const A (&)[1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) {
      s.at[0] = fused(x[0][i], x[0][i], s.at[0]);
      s.at[1] = fused(x[1][i], x[1][i], s.at[1]);
      s.at[2] = fused(x[0][i], x[1][i], s.at[2]);
    }
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    known.first = inverse_root(s.at[0] + A(1e-12));
    known.second = inverse_root(s.at[1] + A(1e-12));
    known.cosine = s.at[2] * known.first * known.second;
  }
};

template <class A, int> struct CosineEmbeddingLoss : Angle<A> {
  using typename Angle<A>::Known;
  static constexpr int outputs = 0;

  HD A cost(const Known& known, i64 label) const {
    const A beyond = known.cosine - A(this->margin);
    return label == 1 ? 1 - known.cosine : label != -1 || beyond < 0 ? A(0) : beyond;
  }
};

template <class A, int> struct CosineEmbeddingLossBackward : Angle<A> {
  using typename Angle<A>::Known;
  static constexpr int outputs = 2;

  // From then on `cosine` is what the other row is multiplied by, and the lengths what its own is.
  HD void pull(Known& known, i64 label, A dloss) const {
    const bool far = label == -1 && known.cosine >= A(this->margin);
    const A dcosine = label == 1 ? -dloss : far ? dloss : A(0), along = dcosine * known.cosine;
    known.cosine = dcosine * known.first * known.second;
    known.first *= along * known.first;
    known.second *= along * known.second;
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[2][N], const A (&)[1][N], u32, A (&y)[2][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      y[0][i] = fused(known.cosine, x[1][i], -known.first * x[0][i]);
      y[1][i] = fused(known.cosine, x[0][i], -known.second * x[1][i]);
    }
  }
};

// Distances are those of the anchor from the two others, and where these may swap, between them.
template <class A> struct Triplet {
  static constexpr int loads = 3, inputs = 3, columns = 0, sums = 0;
  static constexpr bool labelled = false;
  using State = Several<A, 3>;
  f64 margin, eps, swap;

  HD State differences(A anchor, A positive, A negative) const {
    const A more = A(eps), between = positive - negative + more;
    return {anchor - positive + more, anchor - negative + more, swap != 0 ? between : A(0)};
  }
  // By how much the near one is not near enough.
  HD A excess(const State& length) const {
    const A far = swap != 0 ? -larger(-length.at[1], -length.at[2]) : length.at[1];
    return A(margin) + length.at[0] - far;
  }
  HD A lost(const State& length) const {
    const A loss = excess(length);
    return loss < 0 ? A(0) : loss;
  }
  // The cotangents of the distances.
  HD State pulled(const State& length, A dloss) const {
    const A all = excess(length) >= 0 ? dloss : A(0);
    if (swap == 0) return {all, all, A(0)};
    const A own = length.at[1] < length.at[2] ? A(1) : length.at[1] == length.at[2] ? A(0.5) : A(0);
    return {all, own * all, (1 - own) * all};
  }
  // The gradients, from the slopes of what is lost by the differences.
  template <int N> static HD void spread(const State& slope, int i, A (&y)[3][N]) {
    y[0][i] = slope.at[0] - slope.at[1];
    y[1][i] = -slope.at[0] - slope.at[2];
    y[2][i] = slope.at[1] + slope.at[2];
  }
};

// The usual norm. What is known are the distances, then what differences are multiplied by.
template <class A> struct Euclidean : Triplet<A>, Summed<A, 3> {
  static constexpr int stages = ONCE;
  using State = Several<A, 3>;
  using Known = State;

  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[3][N], const A (&)[1][N], u32 keep) const {
    UNROLL for (int i = 0; i < N; ++i) {
      if (!(keep >> i & 1)) continue;
      const State d = this->differences(x[0][i], x[1][i], x[2][i]);
      UNROLL for (int k = 0; k < 3; ++k) s.at[k] = fused(d.at[k], d.at[k], s.at[k]);
    }
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    UNROLL for (int k = 0; k < 3; ++k) known.at[k] = square_root(s.at[k]);
  }
  HD A cost(const Known& known, i64) const { return this->lost(known); }
  HD void pull(Known& known, i64, A dloss) const {
    const State share = this->pulled(known, dloss);
    UNROLL for (int k = 0; k < 3; ++k) {
      known.at[k] = known.at[k] == 0 ? A(0) : share.at[k] / known.at[k];
    }
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[3][N], const A (&)[1][N], u32, A (&y)[3][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      State d = this->differences(x[0][i], x[1][i], x[2][i]);
      UNROLL for (int k = 0; k < 3; ++k) d.at[k] *= known.at[k];
      this->spread(d, i, y);
    }
  }
};

// The sizes of x in units of the largest, to a power that is rounded and what that left; to an
// infinite one 1 for the largest and 0 for others. Not inlined: every element of a row has three.
template <class A>
APART Several<A, 3> relative_powers(Several<A, 3> x, Several<A, 3> most, A exponent, A rest) {
  UNROLL for (int k = 0; k < 3; ++k) {
    const A size = magnitude(x.at[k]), whole = most.at[k];
    const A part = whole > 0 ? ratio(size, whole) : A(0);
    if (exponent - exponent != 0) x.at[k] = A(size == whole);
    else if (exponent == 0) x.at[k] = 1;
    else if (exponent != 1 && part > 0) x.at[k] = power(part, exponent, rest);
    else x.at[k] = exponent < 0 && size > 0 ? part + A(infinity()) : part;
  }
  return x;
}

// Any norm: the largest difference first, then powers relative to it.
template <class A> struct Powers : Triplet<A> {
  static constexpr int stages = TWICE;
  using State = Several<A, 3>;
  struct Known {
    State most, sum;  // and then what slopes are multiplied by
  };
  f64 p, inverse;

  template <int> static HD State start() { return {}; }
  template <int S> static HD State join(State a, const State& b) {
    UNROLL for (int k = 0; k < 3; ++k) {
      a.at[k] = S == 0 ? larger(a.at[k], b.at[k]) : a.at[k] + b.at[k];
    }
    return a;
  }
  static HD State raised(const State& x, const State& most, f64 exponent) {
    const A e = A(exponent), rest = e - e == 0 ? A(exponent - f64(e)) : A(0);
    return relative_powers(x, most, e, rest);
  }
  static HD State raised(const State& sum, f64 exponent) {
    return raised(sum, {A(1), A(1), A(1)}, exponent);
  }
  HD State lengths(const Known& known) const {
    State length = raised(known.sum, inverse);
    UNROLL for (int k = 0; k < 3; ++k) {
      const A most = known.most.at[k];
      length.at[k] = most - most == 0 ? most * length.at[k] : most;
    }
    return length;
  }

  template <int S, int N>
  HD void take(
      State& s, const Known& known, const A (&x)[3][N], const A (&)[1][N], u32 keep) const {
    UNROLL for (int i = 0; i < N; ++i) {
      if (!(keep >> i & 1)) continue;
      const State d = this->differences(x[0][i], x[1][i], x[2][i]);
      if constexpr (S == 0) {
        UNROLL for (int k = 0; k < 3; ++k) s.at[k] = larger(s.at[k], magnitude(d.at[k]));
      } else {
        const State part = raised(d, known.most, p);
        UNROLL for (int k = 0; k < 3; ++k) s.at[k] += part.at[k];
      }
    }
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    if constexpr (S == 0) known.most = s;
    UNROLL for (int k = 0; S == 1 && k < 3; ++k) {
      const A most = known.most.at[k];
      known.sum.at[k] = most - most == 0 ? s.at[k] : most == most ? A(1) : most;
    }
  }
  HD A cost(const Known& known, i64) const { return this->lost(lengths(known)); }
  HD void pull(Known& known, i64, A dloss) const {
    const State share = this->pulled(lengths(known), dloss);
    const State part = raised(known.sum, inverse - 1);
    UNROLL for (int k = 0; k < 3; ++k) {
      // Where the largest tie, none of them is more than a part.
      const A ties = known.sum.at[k] > 0 ? known.sum.at[k] : A(1);
      known.sum.at[k] = share.at[k] * (inverse == 0 ? 1 / ties : part.at[k]);
    }
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[3][N], const A (&)[1][N], u32, A (&y)[3][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      State d = this->differences(x[0][i], x[1][i], x[2][i]);
      const State part = raised(d, known.most, p - 1);
      UNROLL for (int k = 0; k < 3; ++k) {
        const A x = d.at[k], sign = x > 0 ? A(1) : x < 0 ? A(-1) : x;
        d.at[k] = sign * (part.at[k] * known.sum.at[k]);
      }
      this->spread(d, i, y);
    }
  }
};

// P is 2, or anything else.
template <class A, int P> using Norms = typename Either<P == 2, Euclidean<A>, Powers<A>>::type;
template <class A, int P> struct TripletMarginLoss : Norms<A, P> {
  static constexpr int outputs = 0;
};
template <class A, int P> struct TripletMarginLossBackward : Norms<A, P> {
  static constexpr int outputs = 3;
};

}  // namespace baracuda
