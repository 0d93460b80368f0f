// Ops that read or write where an index array points. Few have a formula: the schedule is all.
#include "common/math.cuh"
#include "indexed/accumulate.cuh"
#include "indexed/bags.cuh"
#include "indexed/bounds.cuh"
#include "indexed/by_row.cuh"
#include "indexed/combine.cuh"
#include "indexed/few_rows.cuh"
#include "indexed/fixed.cuh"
#include "indexed/gather.cuh"
#include "indexed/last_write.cuh"
#include "indexed/lists.cuh"
#include "indexed/permute.cuh"
#include "indexed/scatter.cuh"
#include "indexed/sort_index.cuh"
#include "indexed/tell.cuh"
#include "indexed/transposed_scatter.cuh"
#include "indexed/units.cuh"

#ifdef __CUDACC__

namespace baracuda {

// Rows of a table times a number, and sums of rows in its gradient.
struct Scaled : Whole {
  f64 scale;

  template <class A, int N> DEVICE void finish(A (&x)[N], u32) const {
    UNROLL for (int i = 0; i < N; ++i) x[i] *= A(scale);
  }
  template <class T, int N> DEVICE void apply(Vec<T, N>& v) const {
    Acc<T> x[N];
    widen(v, x);
    finish(x, 1);
    narrow(x, v);
  }
};

// The mean of the rows of a segment, and their maximum, which is NaN where one has a NaN.
struct Averaged : Whole {
  static constexpr bool COUNTS = true;
  template <class A, int N> DEVICE void finish(A (&x)[N], u32 many) const {
    // A division, corrected as the hardware corrects it, of which all elements share a part.
    const A n = A(many), share = A(1) / n;
    UNROLL for (int i = 0; i < N; ++i) {
      const A near = x[i] * share, rest = fused(-near, n, x[i]);
      x[i] = magnitude(x[i]) < A(infinity()) ? fused(rest, share, near) : near;
    }
  }
};
struct Highest : Whole {
  static constexpr bool ZERO = false;
  template <class A> static DEVICE A none() { return -A(infinity()); }
  template <class A> static DEVICE A join(A x, A y) { return x > y || x != x ? x : y; }
};

// Softmax within segments: the sum of powers, and the result. Its gradient: a sum of products.
template <class T> struct Powers : Terms<T, false, true> {
  template <class A> static DEVICE A term(A x, A, A most) { return exponential(x - most); }
};
template <class T> struct Products : Terms<T, true, false> {
  template <class A> static DEVICE A term(A x, A y, A) { return x * y; }
};
struct Ratio {
  static constexpr int TAKES = TAKES_X | TAKES_KNOWN | TAKES_SUMS;
  template <class A> static DEVICE A of(A x, A, A most, A sum, A) {
    return exponential(x - most) / sum;
  }
};
struct Slope {
  static constexpr int TAKES = TAKES_X | TAKES_Y | TAKES_SUMS;
  template <class A> static DEVICE A of(A dy, A y, A, A sum, A) { return y * (dy - sum); }
};
// Of a maximum: 1 where an element is it, then its share. NaN is NaN's equal.
struct Tie {
  static constexpr int TAKES = TAKES_X | TAKES_KNOWN;
  template <class A> static DEVICE A of(A x, A, A most, A, A) {
    return x == most || (x != x && most != most) ? 1 : 0;
  }
};
struct Shared {
  static constexpr int TAKES = TAKES_X | TAKES_KNOWN | TAKES_SUMS;
  template <class A> static DEVICE A of(A tie, A, A dout, A ties, A) {
    return tie > 0 ? dout / ties : A(0);
  }
};
struct Evenly {
  static constexpr int TAKES = TAKES_KNOWN | TAKES_COUNT;
  template <class A> static DEVICE A of(A, A, A dout, A, A many) { return dout / many; }
};

}  // namespace baracuda
#endif
