// The p-norm over sliding windows, and its gradient.
#include "common/window_backward.cuh"
#include "common/math.cuh"
#include "common/window.cuh"

namespace baracuda {

// P is 1, 2, 3 or 4, or one of these.
enum : int { INFINITE = 0, REAL = -1 };

// What a pulled gradient has to be from `low` on, unless it is 0 for a dy of 0, and what goes to a
// cell up to `high`: then neither they nor the powers in them have left the range.
template <class A> struct Gradient;
template <> struct Gradient<f32> {
  static constexpr f32 low = 7.52316384526264e-37f, high = 3.4028234663852886e38f;
};
template <> struct Gradient<f64> {
  static constexpr f64 low = 1e-300, high = 1.7976931348623157e308;
};

// Powers of sizes. The fast forms need every power to stay normal: for cells between `low` and
// `high` backward, for sums forward. COARSE is for results that are rounded to 16 bits: to 2^-16.
template <class A, int P, bool COARSE = false> struct Norm {
  A p, inverse, low, high;

  HD A raise(A size) const {
    if constexpr (P == 1) return size;
    else if constexpr (P == 2) return size * size;
    else if constexpr (P == 3) return size * size * size;
    else if constexpr (P == 4) return size * size * (size * size);
    else return positive_power(size, p);
  }

  HD A positive_power(A size, A exponent) const {
    if constexpr (COARSE) return exponential2(exponent * logarithm2(size));
    // Chosen afterwards: a branch around each power would keep them from running side by side.
    const A raised = power(size, exponent);
    return size == 0 ? A(0) : raised;
  }

  HD A extract(A sum) const {
    if constexpr (P == 1) return sum;
    else if constexpr (COARSE && P == 2) return coarse_root2(sum);
    else if constexpr (COARSE && P == 4) return coarse_root2(coarse_root2(sum));
    else if constexpr (COARSE) return exponential2(logarithm2(sum) * inverse);
    else if constexpr (P == 2) return root2(sum);
    else if constexpr (P == 3) return root3(sum);
    else if constexpr (P == 4) return root2(root2(sum));
    else return extract_real(sum);
  }

  HD A extract_real(A sum) const {
    const A rest = fused(-p, inverse, A(1)) * inverse;
    const A root = powers(Several<A, 1>{{sum}}, inverse, rest).at[0];
    return sum == 0 ? A(0) : root;
  }

  // x * |x|^(p-2)
  HD A slope(A x) const {
    const A size = magnitude(x);
    if constexpr (P == 1) return A((x > 0) - (x < 0));
    else if constexpr (P == 2) return x;
    else if constexpr (P == 3) return x * size;
    else if constexpr (P == 4) return x * (x * x);
    const A raised = positive_power(size, p - 1);
    return x == 0 ? A(0) : x < 0 ? -raised : raised;
  }

  // y^(1-p), for a fast form
  HD A divisor(A y) const {
    if constexpr (P == 1) return A(1);
    else if constexpr (P == 2) return reciprocal(y);
    else if constexpr (P == 3) return reciprocal(y * y);
    else if constexpr (P == 4) return reciprocal(y * y * y);
    else return positive_power(y, 1 - p);
  }
};

template <class A> HD bool finite(A x) { return x - x == 0; }

template <class A, int P, bool COARSE = false> struct LpPool : Norm<A, P, COARSE> {
  static constexpr bool INLINED = P != REAL || COARSE;
  // Bounds of a cell whose power is between `low` and `high`; the logarithm of either bound is as
  // large as `reach`, or larger.
  A least, most, reach;

  HD A lift(A x) const { return P == INFINITE ? magnitude(x) : this->raise(magnitude(x)); }

  template <int N> HD void lift(A (&x)[N]) const {
    // So few do not take long.
    if constexpr (N < 5) {
      UNROLL for (int i = 0; i < N; ++i) x[i] = lift(x[i]);
    } else {
      Several<A, N> sizes;
      UNROLL for (int i = 0; i < N; ++i) sizes.at[i] = magnitude(x[i]);
      sizes = powers(sizes, this->p, A(0));
      UNROLL for (int i = 0; i < N; ++i) x[i] = x[i] == 0 ? A(0) : sizes.at[i];
    }
  }

  HD A join(A a, A b) const { return P == INFINITE ? larger(a, b) : a + b; }

  // What powers lose below the range shows only in a sum that is itself near it.
  HD A lower(A sum, bool& odd) const {
    if constexpr (P == INFINITE) return sum;
    if constexpr (COARSE && (P == 3 || P == REAL)) {
      // Zero, infinity and NaN are out of the range here as well.
      const A log = logarithm2(sum);
      odd |= !(magnitude(log) <= this->reach);
      return exponential2(log * this->inverse);
    }
    if constexpr (P != 1) odd |= !(sum >= this->low) | !(sum <= this->high);
    return this->extract(sum);
  }

  // A sum out of the range is right where this holds for none of its cells: that of zeros.
  HD bool extreme(A x) const {
    if constexpr (P == 1 || P == INFINITE) return false;
    return (x != 0) & (!(magnitude(x) >= least) | !(magnitude(x) <= most));
  }

  // In units of the largest cell, so that no power leaves the range on the way.
  template <class Cells> HD A careful(Cells cells) const {
    A top = 0, sum = 0;
    // One loop for both passes, which compiles faster than two.
    ROLLED for (int pass = 0; pass < 2; ++pass) {
      cells.each([&](A x) {
        const A size = magnitude(x);
        if (pass == 0) top = larger(top, size);
        else sum += this->raise(P == 1 ? size : ratio(size, top));
      });
    }
    if (P == INFINITE || top == 0 || !finite(top)) return top;
    return P == 1 ? sum : top * this->extract(sum);
  }
};

template <class A, int P, bool COARSE = false> struct LpPoolBackward : Norm<A, P, COARSE> {
  // Of a window of zeros y itself, which is 0; of one with a NaN y, which sends it on.
  HD A pull(A dy, A y, bool& odd) const {
    const A divisor = this->divisor(y);
    const bool some = y > 0;
    const A pulled = some ? dy * divisor : y;
    // The approximate reciprocal of float32 is 0 where it would be subnormal; others are rounded.
    if constexpr (P == REAL || sizeof(A) == 8) odd |= some & (divisor < Gradient<A>::low);
    if constexpr (P != 1) odd |= some & (dy != 0) & (magnitude(pulled) < Gradient<A>::low);
    return pulled;
  }

  HD A push(A x, A sum, bool& odd) const {
    const A pushed = this->slope(x) * sum, size = magnitude(x);
    if constexpr (P != 1) odd |= !(magnitude(pushed) <= Gradient<A>::high);
    if constexpr (P == REAL) odd |= !(size <= this->high);
    if constexpr (P != 1 && P != 2) odd |= (x != 0) & (size < this->low);
    return pushed;
  }

  // For the largest cell of a window: an equal part for each of the cells that hold it; y where it
  // is 0 or NaN.
  HD bool holds(A x, A y) const { return magnitude(x) == y; }
  HD A share(A dy, A y, A ties) const {
    return !(y > 0) ? y : ties > 1 ? dy * reciprocal(ties) : dy;
  }
  HD A rest(A y) const { return y > 0 ? A(0) : y; }
  HD A turn(A x, A sum) const { return x < 0 ? -sum : sum; }

  template <class Cells> HD A term(A dy, A x, A y, Cells cells) const {
    if (!(y > 0)) return y;
    const A sign = A((x > 0) - (x < 0)), size = magnitude(x);
    if constexpr (P == INFINITE) {
      A ties = 0;
      if (size == y) cells.each([&](A other) { ties += A(magnitude(other) == y); });
      return size == y ? sign * (dy / ties) : A(0);
    }
    if (x == 0) return 0;
    if constexpr (P == 1) return dy * sign;
    // A ratio may underflow where its power below 1 does not. Coarse powers take subnormals for 0.
    if (P == REAL && this->p < 2) {
      const A exponent = this->p - 1, part = ratio(size, y);
      const bool fits = part >= Gradient<A>::low;
      const A first = power(fits ? part : size, exponent);
      return dy * (sign * (fits ? first : first * power(y, -exponent)));
    }
    return dy * this->slope(ratio(x, y));
  }
};

}  // namespace baracuda
