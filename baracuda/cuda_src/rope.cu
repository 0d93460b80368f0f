// Rotary position embedding: pairs turn by angles proportional to the position.
#include "common/math.cuh"
#include "common/rotate.cuh"

namespace baracuda {

struct Rope {
  template <class A> static HD void apply(A a, A b, Pair<A> angle, A& c, A& d) {
    c = fused(a, angle.first, -(b * angle.second));
    d = fused(a, angle.second, b * angle.first);
  }
};

struct RopeBackward {
  template <class A> static HD void apply(A a, A b, Pair<A> angle, A& c, A& d) {
    c = fused(a, angle.first, b * angle.second);
    d = fused(b, angle.first, -(a * angle.second));
  }
};

}  // namespace baracuda
