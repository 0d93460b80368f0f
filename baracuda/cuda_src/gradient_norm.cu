// The joint norm of gradients, what a step divides them by to clip it, and their multiples.
#include "common/list_totals.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct SumOfSquares {
  static constexpr int inputs = 1, outputs = 1;
  HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = x[0] * x[0]; }
};

template <class A> struct ClipScale {
  static constexpr int inputs = 1, outputs = 3;
  f64 max_norm, eps, grad_scale;

  HD void operator()(const A (&squares)[1], A (&out)[3]) const {
    const A norm = square_root(squares[0]) / A(grad_scale), excess = (norm + A(eps)) / A(max_norm);
    // Of infinities and NaN the difference is NaN.
    const bool finite = norm - norm == 0;
    out[0] = norm;
    out[1] = A(grad_scale) * (finite && excess > 1 ? excess : A(1));
    out[2] = finite ? A(0) : A(1);
  }
};

template <class A> struct ScaleBy {
  static constexpr int inputs = 1, outputs = 1;
  f64 factor;

  struct Ready {
    A factor;
    HD bool idle() const { return factor == 1; }
    HD void operator()(const A (&x)[1], A (&y)[1]) const { y[0] = x[0] * factor; }
  };

  HD Ready ready() const { return {A(factor)}; }
};

}  // namespace baracuda
