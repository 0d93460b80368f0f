// Functors of ops that tests declare.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

template <class A> struct AdamwStep {
  static constexpr int inputs = 4, outputs = 3;
  f64 lr, beta1, beta2, eps, weight_decay;
  i64 step;

  HD void operator()(const A (&in)[4], A (&out)[3]) const {
    const A g = in[1];
    out[1] = fused(A(beta1), in[2], A(1 - beta1) * g);
    out[2] = fused(A(beta2), in[3], A(1 - beta2) * (g * g));
    const A first = out[1] / A(1 - pow(beta1, f64(step)));
    const A second = out[2] / A(1 - pow(beta2, f64(step)));
    // No product is left to the compiler to fuse or not.
    const A kept = A(fused(-lr, weight_decay, 1.0)) * in[0];
    out[0] = fused(-A(lr), first / (square_root(second) + A(eps)), kept);
  }
};

}  // namespace baracuda
