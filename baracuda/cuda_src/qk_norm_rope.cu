// Heads of q and k, normalised by their root mean square, scaled, and turned in pairs.
#include "common/heads.cuh"
#include "common/sum_rows.cuh"

namespace baracuda {

struct QkNormRope {
  static constexpr int loads = 1;
  template <class A> static HD void turn(A a, A b, A cosine, A sine, A& c, A& d) {
    c = fused(a, cosine, -(b * sine));
    d = fused(a, sine, b * cosine);
  }
};

// Loads are the gradient of the result, which is turned back, and what was normalised.
struct QkNormRopeBackward {
  static constexpr int loads = 2;
  template <class A> static HD void turn(A a, A b, A cosine, A sine, A& c, A& d) {
    c = fused(a, cosine, b * sine);
    d = fused(b, cosine, -(a * sine));
  }
};

}  // namespace baracuda
