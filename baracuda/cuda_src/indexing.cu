// Ops that read or write where an index array points. Few have a formula: the schedule is all.
#include "indexed/accumulate.cuh"
#include "indexed/fixed.cuh"
#include "indexed/gather.cuh"
#include "indexed/lists.cuh"
#include "indexed/scatter.cuh"
#include "indexed/transposed_scatter.cuh"
#include "indexed/units.cuh"

#ifdef __CUDACC__

namespace baracuda {

// Rows of a table times a number, and sums of rows in its gradient.
struct Scaled {
  f64 scale;

  template <class A, int N> DEVICE void finish(A (&x)[N]) const {
    UNROLL for (int i = 0; i < N; ++i) x[i] *= A(scale);
  }
  template <class T, int N> DEVICE void apply(Vec<T, N>& v) const {
    Acc<T> x[N];
    widen(v, x);
    finish(x);
    narrow(x, v);
  }
};

}  // namespace baracuda
#endif
