// The p-norm over sliding windows, and its gradient.
#include "common/covering.cuh"
#include "common/math.cuh"
#include "common/window.cuh"

namespace baracuda {

// P is 1, 2, 3 or 4, or one of these.
enum : int { INFINITE = 0, REAL = -1 };

// What a pulled gradient has to be within, or 0 for a dy of 0: then neither it nor the power in it
// has left the range.
template <class A> struct Gradient;
template <> struct Gradient<f32> {
  static constexpr f32 low = 7.52316384526264e-37f, high = 1.329227995784916e36f;
};
template <> struct Gradient<f64> {
  static constexpr f64 low = 1e-300, high = 1e300;
};

// Powers of sizes. The fast forms need every power to stay normal: for cells from `low` on, and up
// to `high` where it bounds them, or their sum forward.
template <class A, int P> struct Norm {
  // Whether a power is a few multiplications.
  static constexpr bool inlined = P != REAL;
  A p, inverse, low, high;

  HD A raise(A size) const {
    if constexpr (P == 1) return size;
    else if constexpr (P == 2) return size * size;
    else if constexpr (P == 3) return size * size * size;
    else if constexpr (P == 4) return size * size * (size * size);
    else return size == 0 ? A(0) : power(size, p);
  }

  HD A extract(A sum) const {
    if constexpr (P == 1) return sum;
    else if constexpr (P == 2) return root2(sum);
    else if constexpr (P == 3) return root3(sum);
    else if constexpr (P == 4) return root2(root2(sum));
    else return extract_real(sum);
  }

  HD A extract_real(A sum) const {
    if (sum == 0) return 0;
    // What the rounding of 1/p leaves comes back with the logarithm of the sum.
    const A root = power(sum, inverse), rest = fused(-p, inverse, A(1)) * inverse;
    return fused(root, rest * logarithm(sum), root);
  }

  // x * |x|^(p-2)
  HD A slope(A x) const {
    const A size = magnitude(x);
    if constexpr (P == 1) return A((x > 0) - (x < 0));
    else if constexpr (P == 2) return x;
    else if constexpr (P == 3) return x * size;
    else if constexpr (P == 4) return x * (x * x);
    else return x == 0 ? A(0) : x < 0 ? -power(size, p - 1) : power(size, p - 1);
  }

  // y^(1-p), for a fast form
  HD A divisor(A y) const {
    if constexpr (P == 1) return A(1);
    else if constexpr (P == 2) return reciprocal(y);
    else if constexpr (P == 3) return reciprocal(y * y);
    else if constexpr (P == 4) return reciprocal(y * y * y);
    else return power(y, 1 - p);
  }
};

template <class A> HD bool finite(A x) { return x - x == 0; }
template <class A> HD A larger(A a, A b) { return b > a || b != b ? b : a; }

template <class A, int P> struct LpPool : Norm<A, P> {
  HD A lift(A x) const { return P == INFINITE ? magnitude(x) : this->raise(magnitude(x)); }

  HD A join(A a, A b) const { return P == INFINITE ? larger(a, b) : a + b; }

  // What powers lose below the range shows only in a sum that is itself near it.
  HD A lower(A sum, bool& odd, bool& small) const {
    if constexpr (P == INFINITE) return sum;
    if constexpr (P != 1) {
      odd |= !(sum <= this->high);
      small |= sum < this->low;
    }
    return this->extract(sum);
  }

  HD bool tiny(A x) const {
    return P != 1 && P != INFINITE && x != 0 && !(this->raise(magnitude(x)) >= this->low);
  }

  // In units of the largest cell, so that no power leaves the range on the way.
  template <class Cells> HD A careful(Cells cells) const {
    A most = 0, sum = 0;
    cells.each([&](A x) { most = larger(most, magnitude(x)); });
    if (P == INFINITE || most == 0 || !finite(most)) return most;
    cells.each([&](A x) { sum += this->raise(P == 1 ? magnitude(x) : magnitude(x) / most); });
    return P == 1 ? sum : most * this->extract(sum);
  }
};

template <class A, int P> struct LpPoolBackward : Norm<A, P> {
  // Of a window of zeros y itself, which is 0; of one with a NaN y, which sends it on.
  HD A pull(A dy, A y, bool& odd) const {
    const A divisor = this->divisor(y);
    const A pulled = y > 0 ? dy * divisor : y, size = magnitude(pulled);
    // The approximate reciprocal of float32 is 0 where it would be subnormal; others are rounded.
    if constexpr (P == REAL || sizeof(A) == 8) odd |= divisor < Gradient<A>::low && y > 0;
    if constexpr (P != 1) {
      odd |= !(size <= Gradient<A>::high);
      odd |= size < Gradient<A>::low && dy != 0 && y > 0;
    }
    return pulled;
  }

  HD A push(A x, A sum, bool& odd) const {
    const A size = magnitude(x);
    if constexpr (P != 1) odd |= !(size <= this->high);
    if constexpr (P != 1 && P != 2) odd |= size > 0 && size < this->low;
    return this->slope(x) * sum;
  }

  // For the largest cell of a window: an equal part for each of the cells that hold it; y where it
  // is 0 or NaN.
  HD bool holds(A x, A y) const { return magnitude(x) == y; }
  HD A share(A dy, A y, A ties) const { return !(y > 0) ? y : ties > 1 ? dy * reciprocal(ties) : dy; }
  HD A collect(A x, A y, A share) const {
    return magnitude(x) == y ? (x < 0 ? -share : share) : y > 0 ? A(0) : y;
  }

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
    // A ratio may underflow where its power below 1 does not.
    if (this->p < 2) return dy * (this->slope(x) * power(y, 1 - this->p));
    return dy * this->slope(x / y);
  }
};

}  // namespace baracuda
