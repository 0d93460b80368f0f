// Random masks. A word of 32 bits decides on an element, and nothing is kept of it.
#include "common/elementwise.cuh"
#include "common/philox.cuh"

namespace baracuda {

// Where a word is below p * 2^32, rounded down, nothing is left, whatever was there.
template <class A> struct Dropout : Stream {
  static constexpr int inputs = 1, outputs = 1;
  f64 p;

  HD A left(A x, u32 word) const {
    // Both are the same for all elements, and no branch may keep them from being taken once.
    const A scale = A(1) / A(1 - p);
    const u32 bound = u32(p * 4294967296.0);
    const bool some = p < 1 && word >= bound;
    return some ? x * scale : A(0);
  }
  HD void operator()(const A (&x)[1], A (&y)[1], u32 word) const { y[0] = left(x[0], word); }
};

template <class A> struct DropoutAdd : Dropout<A> {
  static constexpr int inputs = 2;
  HD void operator()(const A (&x)[2], A (&y)[1], u32 word) const {
    y[0] = x[1] + this->left(x[0], word);
  }
};

}  // namespace baracuda
