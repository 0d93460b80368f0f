// Normalisation of rows. Inputs are x, or dy and x; columns are the weight and the bias,
// where given.
#include "common/kept_rows.cuh"
#include "common/rows.cuh"
#include "common/streamed_rows.cuh"

namespace baracuda {

// A residual BEFORE the norm is added to x: the sum, as it is stored, takes the place of x and is a
// second output. One AFTER the norm is added to the result.
enum Residual { NO, BEFORE, AFTER };

template <class A, int COLUMNS, Residual RESIDUAL> struct NormForward {
  static constexpr int loads = 1 + (RESIDUAL != NO), inputs = 1 + (RESIDUAL == AFTER);
  static constexpr int columns = COLUMNS, outputs = 1 + (RESIDUAL == BEFORE), sums = 0;
  template <int N> static HD void merge(const A (&x)[loads][N], A (&s)[1][N]) {
    UNROLL for (int i = 0; i < N; ++i) s[0][i] = x[0][i] + x[loads - 1][i];
  }
};

// Inputs are dy, the gradient of the stored sum where there is a RESIDUAL, and x.
template <class A, int COLUMNS, bool RESIDUAL> struct NormBackward {
  static constexpr int loads = 2 + RESIDUAL, inputs = loads, columns = COLUMNS, outputs = 1;
  static constexpr int X = loads - 1, LATE = RESIDUAL ? 1 : -1;
  static constexpr bool shifts = false;  // whether an offset is added to columns
  template <int N>
  static HD A pulled(const A (&x)[loads][N], const A (&c)[COLUMNS + 1][N], int i) {
    return COLUMNS ? x[0][i] * c[0][i] : x[0][i];
  }
  template <int N> static HD A more(const A (&x)[loads][N], int i, A dx) {
    return RESIDUAL ? x[1][i] + dx : dx;
  }
};

// The scale of an element is its weight and an offset. T is narrower than A where what is
// normalised is rounded to it before it is scaled.
template <class A, class T> struct Scaling {
  f64 eps, offset;

  HD A scale(A weight) const { return weight + A(offset); }
  template <int N> static HD void round(A (&normal)[N]) {
    if constexpr (sizeof(T) < sizeof(A)) {
      Vec<T, N> v;
      narrow(normal, v);
      widen(v, normal);
    }
  }
};

template <class A, int COLUMNS, Residual RESIDUAL, class T>
struct RmsNormOf : NormForward<A, COLUMNS, RESIDUAL>, Summed<A, 1>, Scaling<A, T> {
  using Base = NormForward<A, COLUMNS, RESIDUAL>;
  static constexpr int stages = ONCE, IN = Base::inputs, OUT = Base::outputs;
  using State = Several<A, 1>;
  struct Known {
    A inverse;
  };

  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[IN][N], const A (&)[COLUMNS + 1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) s.at[0] = fused(x[0][i], x[0][i], s.at[0]);
  }
  template <int S> HD void settle(const State& s, A part, Known& known) const {
    known.inverse = inverse_root(s.at[0] * part + A(this->eps));
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[IN][N], const A (&c)[COLUMNS + 1][N], u32,
      A (&y)[OUT][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      y[OUT - 1][i] = x[0][i];
      y[0][i] = x[0][i] * known.inverse;
    }
    if constexpr (COLUMNS > 0) {
      this->round(y[0]);
      UNROLL for (int i = 0; i < N; ++i) y[0][i] *= this->scale(c[0][i]);
    }
    if constexpr (RESIDUAL == AFTER) {
      UNROLL for (int i = 0; i < N; ++i) y[0][i] += x[IN - 1][i];
    }
  }
};

template <class A, int COLUMNS, bool RESIDUAL, class T>
struct RmsNormBackwardOf : NormBackward<A, COLUMNS, RESIDUAL>, Summed<A, 2>, Scaling<A, T> {
  using Base = NormBackward<A, COLUMNS, RESIDUAL>;
  static constexpr int stages = ONCE, sums = COLUMNS, X = Base::X;
  static constexpr bool shifts = COLUMNS > 0;
  using State = Several<A, 2>;
  struct Known {
    A inverse, along;
  };

  template <int N> HD A pulled(const A (&x)[X + 1][N], const A (&c)[COLUMNS + 1][N], int i) const {
    return COLUMNS ? x[0][i] * this->scale(c[0][i]) : x[0][i];
  }
  template <int S, int N>
  HD void take(
      State& s, const Known&, const A (&x)[X + 1][N], const A (&c)[COLUMNS + 1][N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) {
      s.at[0] = fused(x[X][i], x[X][i], s.at[0]);
      s.at[1] = fused(pulled(x, c, i), x[X][i], s.at[1]);
    }
  }
  template <int S> HD void settle(const State& s, A part, Known& known) const {
    known.inverse = inverse_root(s.at[0] * part + A(this->eps));
    known.along = s.at[1] * known.inverse * part * known.inverse;
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[X + 1][N], const A (&c)[COLUMNS + 1][N], u32,
      A (&y)[1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      const A rest = fused(-x[X][i], known.along, pulled(x, c, i));
      y[0][i] = Base::more(x, i, known.inverse * rest);
    }
  }
  template <int N>
  HD void share(const Known& known, const A (&x)[X + 1][N], A (&t)[COLUMNS + 1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) t[0][i] = x[X][i] * known.inverse;
    this->round(t[0]);
    UNROLL for (int i = 0; i < N; ++i) t[0][i] *= x[0][i];
  }
};

// The mean as a number near it and what is left, so that a large one costs no accuracy.
template <class A> struct Centre {
  A near, shift, variance, inverse;
  template <int N> HD void guess(const A (&x)[N], int there) {
    A sum = 0;
    UNROLL for (int i = 0; i < N; ++i) sum += x[i];
    near = sum / A(there);
  }
  HD void correct() { near += shift; }
  // Not so far off that the square of what is left takes bits of the variance. False for NaN.
  HD bool good() const { return shift * shift <= A(4) * variance; }

  HD A deviation(A x) const { return x - near; }
  HD A normal(A x) const { return (x - near - shift) * inverse; }
  // From the sums of deviations and of their squares, and the part of one element.
  HD void spread(A first, A second, A part, A eps) {
    shift = first * part;
    variance = fused(-shift, shift, second * part);
    if (variance < 0) variance = 0;
    inverse = inverse_root(variance + eps);
  }
};

template <class A, int COLUMNS, Residual RESIDUAL>
struct LayerNormOf : NormForward<A, COLUMNS, RESIDUAL>, Summed<A, 2> {
  static constexpr int stages = CENTRED, X = 0, OUT = 1 + (RESIDUAL == BEFORE);
  using State = Several<A, 2>;
  // What is left of the mean, in deviations: an instruction less for each element. Gradients have
  // no register to spare for it.
  struct Known : Centre<A> {
    A offset;
  };
  f64 eps;

  template <int S, int N>
  HD void take(
      State& s, const Known& known, const A (&x)[1][N], const A (&)[COLUMNS + 1][N],
      u32 keep) const {
    UNROLL for (int i = 0; i < N; ++i) {
      if (!(keep >> i & 1)) continue;
      const A d = known.deviation(x[0][i]);
      s.at[0] += d;
      s.at[1] = fused(d, d, s.at[1]);
    }
  }
  template <int S> HD void settle(const State& s, A part, Known& known) const {
    known.spread(s.at[0], s.at[1], part, A(eps));
    known.offset = known.shift * known.inverse;
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[1][N], const A (&c)[COLUMNS + 1][N], u32,
      A (&y)[OUT][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      y[OUT - 1][i] = x[0][i];
      const A normal = fused(known.deviation(x[0][i]), known.inverse, -known.offset);
      if constexpr (COLUMNS == 2) y[0][i] = fused(normal, c[0][i], c[1][i]);
      else y[0][i] = COLUMNS ? normal * c[0][i] : normal;
    }
  }
};

template <class A, int COLUMNS, bool RESIDUAL>
struct LayerNormBackwardOf : NormBackward<A, COLUMNS, RESIDUAL>, Summed<A, 4> {
  using Base = NormBackward<A, COLUMNS, RESIDUAL>;
  static constexpr int stages = CENTRED, sums = 2 * COLUMNS, X = Base::X;
  using State = Several<A, 4>;
  struct Known : Centre<A> {
    A pull, along;  // the means of the gradient, and of its product with the normalised row
  };
  f64 eps;

  template <int S, int N>
  HD void take(
      State& s, const Known& known, const A (&x)[X + 1][N], const A (&c)[COLUMNS + 1][N],
      u32 keep) const {
    UNROLL for (int i = 0; i < N; ++i) {
      if (!(keep >> i & 1)) continue;
      const A d = known.deviation(x[X][i]), pulled = Base::pulled(x, c, i);
      s.at[0] += d;
      s.at[1] = fused(d, d, s.at[1]);
      s.at[2] += pulled;
      s.at[3] = fused(pulled, d, s.at[3]);
    }
  }
  template <int S> HD void settle(const State& s, A part, Known& known) const {
    known.spread(s.at[0], s.at[1], part, A(eps));
    known.pull = s.at[2] * part;
    known.along = fused(-known.shift, known.pull, s.at[3] * part) * known.inverse;
    // A single element is its own mean; a product and its rounding would not cancel.
    if (part == 1) known.inverse = 0;
  }
  template <int N>
  HD void finish(
      const Known& known, const A (&x)[X + 1][N], const A (&c)[COLUMNS + 1][N], u32,
      A (&y)[1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      const A pulled = Base::pulled(x, c, i) - known.pull;
      const A rest = fused(-known.normal(x[X][i]), known.along, pulled);
      y[0][i] = Base::more(x, i, known.inverse * rest);
    }
  }
  template <int N>
  HD void share(const Known& known, const A (&x)[X + 1][N], A (&t)[2 * COLUMNS + 1][N]) const {
    UNROLL for (int i = 0; i < N; ++i) {
      t[0][i] = x[0][i] * known.normal(x[X][i]);
      t[1][i] = x[0][i];
    }
  }
};

template <class A, int C, class T = A> struct RmsNorm : RmsNormOf<A, C, NO, T> {};
template <class A, int C, class T = A> struct AddRmsNorm : RmsNormOf<A, C, BEFORE, T> {};
template <class A, int C, class T = A> struct RmsNormAdd : RmsNormOf<A, C, AFTER, T> {};
template <class A, int C, class T = A>
struct RmsNormBackward : RmsNormBackwardOf<A, C, false, T> {};
template <class A, int C, class T = A>
struct AddRmsNormBackward : RmsNormBackwardOf<A, C, true, T> {};
template <class A, int C> struct LayerNorm : LayerNormOf<A, C, NO> {};
template <class A, int C> struct AddLayerNorm : LayerNormOf<A, C, BEFORE> {};
template <class A, int C> struct LayerNormBackward : LayerNormBackwardOf<A, C, false> {};
template <class A, int C> struct AddLayerNormBackward : LayerNormBackwardOf<A, C, true> {};

}  // namespace baracuda
