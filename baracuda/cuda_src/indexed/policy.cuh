// Accesses that say for how long the L2 is to keep what they touch.
#pragma once
#include "common/vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// PASSING: nobody comes back for it. STAYING: somebody will soon, and then never again.
enum Stay { PASSING, STAYING };

template <Stay S> DEVICE u64 policy() {
  u64 policy;
  if constexpr (S == PASSING) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// One access of N elements, in as many as its bytes need; of less than 4 bytes a plain one.
template <Stay S, int N, class T> DEVICE Vec<T, N> load(const T* p) {
  constexpr int BYTES = int(sizeof(Vec<T, N>));
  if constexpr (BYTES < 4) {
    return load<N>(p);
  } else if constexpr (BYTES > 16) {
    Vec<T, N> v;
    UNROLL for (int i = 0; i < N; i += N * 16 / BYTES) {
      paste(v, i, load<S, N * 16 / BYTES>(p + i));
    }
    return v;
  } else {
    Vec<T, N> v;
    u32* w = reinterpret_cast<u32*>(&v);
    const u64 stay = policy<S>();
    if constexpr (BYTES == 16) {
      asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p), "l"(stay));
    } else if constexpr (BYTES == 8) {
      asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                   : "=r"(w[0]), "=r"(w[1]) : "l"(p), "l"(stay));
    } else {
      asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;"
                   : "=r"(w[0]) : "l"(p), "l"(stay));
    }
    return v;
  }
}
template <Stay S, int N, class T> DEVICE void store(T* p, const Vec<T, N>& v) {
  constexpr int BYTES = int(sizeof(Vec<T, N>));
  if constexpr (BYTES < 4) {
    store<N>(p, v);
  } else if constexpr (BYTES > 16) {
    UNROLL for (int i = 0; i < N; i += N * 16 / BYTES) {
      store<S, N * 16 / BYTES>(p + i, cut<N * 16 / BYTES>(v, i));
    }
  } else {
    const u32* w = reinterpret_cast<const u32*>(&v);
    const u64 stay = policy<S>();
    if constexpr (BYTES == 16) {
      asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p),
                   "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(stay) : "memory");
    } else if constexpr (BYTES == 8) {
      asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1, %2}, %3;" ::"l"(p), "r"(w[0]),
                   "r"(w[1]), "l"(stay) : "memory");
    } else {
      asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(p), "r"(w[0]), "l"(stay)
                   : "memory");
    }
  }
}

// 16 bytes past the caches: where PASSING gained nothing, as in softmax of 16 bits, this did.
template <int N, class T> DEVICE void pass(T* p, const Vec<T, N>& v) {
  static_assert(sizeof(v) == 16, "a vector of registers");
  const u32* w = reinterpret_cast<const u32*>(&v);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]),
               "r"(w[2]), "r"(w[3]) : "memory");
}

}  // namespace baracuda
#endif
