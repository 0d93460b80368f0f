// Rows over their Euclidean norms, and the gradient. Inputs are x, or dy and x.
#include "common/columns.cuh"
#include "common/rows.cuh"

namespace baracuda {

// What elements are divided by is never less than eps, and NaN where the norm is.
template <class A> struct Divisor {
  f64 eps;

  HD A inverse(A norm) const { return 1 / larger(norm, A(eps)); }
};

template <class A, int> struct L2Normalize : Summed<A, 1>, Divisor<A> {
  static constexpr int loads = 1, inputs = 1, columns = 0, outputs = 1, sums = 0, stages = ONCE;
  using State = Several<A, 1>;
  struct Known {
    A inverse;
  };

  template <int S, int N>
  HD void take(State& s, const Known&, const A (&x)[1][N], const A (&)[1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) s.at[0] = fused(x[0][i], x[0][i], s.at[0]);
  }
  template <int S> HD void settle(const State& s, A, Known& known) const {
    known.inverse = this->inverse(square_root(s.at[0]));
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[1][N], const A (&)[1][N], u32, A (&y)[1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) y[0][i] = x[0][i] * known.inverse;
  }
};

template <class A, int> struct L2NormalizeBackward : Summed<A, 2>, Divisor<A> {
  static constexpr int loads = 2, inputs = 2, columns = 0, outputs = 1, sums = 0, stages = ONCE;
  using State = Several<A, 2>;
  struct Known {
    A inverse, along;
  };

  template <int S, int N>
  HD void take(State& s, const Known&, const A (&x)[2][N], const A (&)[1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) {
      s.at[0] = fused(x[1][i], x[1][i], s.at[0]);
      s.at[1] = fused(x[0][i], x[1][i], s.at[1]);
    }
  }
  // A divisor that is eps does not move with x.
  template <int S> HD void settle(const State& s, A, Known& known) const {
    const A norm = square_root(s.at[0]);
    known.inverse = this->inverse(norm);
    known.along = norm < A(this->eps) ? A(0) : s.at[1] * known.inverse * known.inverse;
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[2][N], const A (&)[1][N], u32, A (&y)[1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      y[0][i] = known.inverse * fused(-x[1][i], known.along, x[0][i]);
    }
  }
};

}  // namespace baracuda
