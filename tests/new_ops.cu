// Functors of ops that tests declare.
#include "common/elementwise.cuh"
#include "common/math.cuh"

namespace baracuda {

HD u32 turned(u32 x, int by) { return (x << by) | (x >> (32 - by)); }

// Threefry-2x32 with 20 rounds: the first word of what a counter becomes under a key.
HD u32 threefry(u64 key, u64 counter) {
  constexpr int BY[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const u32 k[3] = {u32(key), u32(key >> 32), 0x1BD11BDA ^ u32(key) ^ u32(key >> 32)};
  u32 a = u32(counter) + k[0], b = u32(counter >> 32) + k[1];
  UNROLL for (int i = 0; i < 20; ++i) {
    a += b;
    b = turned(b, BY[i % 8]) ^ a;
    if (i % 4 == 3) {
      a += k[(i / 4 + 1) % 3];
      b += k[(i / 4 + 2) % 3] + u32(i / 4 + 1);
    }
  }
  return a;
}

template <class A> struct Dropout {
  static constexpr int inputs = 1, outputs = 1;
  u64 seed;
  f64 p;

  HD void operator()(const A (&x)[1], A (&y)[1], u64 number) const {
    const bool kept = f32(threefry(seed, number) >> 8) * 5.9604645e-08f >= f32(p);
    y[0] = kept ? x[0] * A(1 / (1 - p)) : A(0);
  }
};

}  // namespace baracuda
