// What a CUDA source needs of a GPU, on a host: each thread is a fiber, which emulator.cpp runs.
#ifndef EMULATOR_HPP
#define EMULATOR_HPP
#define __CUDACC__ 1
#include <cmath>
#include <cstdint>
#include <cstring>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__

struct Dim {
  unsigned x, y, z;
};
extern Dim threadIdx, blockIdx, blockDim, gridDim;

// Accesses whose address was no multiple of their size.
extern "C" unsigned emulated_misaligned;

namespace emulated {

constexpr size_t FIXED = 16384;

template <class V> V* at(V* p) {
  // No access is wider than 16 bytes.
  emulated_misaligned += reinterpret_cast<uintptr_t>(p) % (alignof(V) < 16 ? alignof(V) : 16) != 0;
  return p;
}

void launch(
    void (*kernel)(const void*), const void* args, Dim grid, unsigned count, unsigned cluster,
    unsigned shared, unsigned seed);

void barrier();
void cluster_arrive();
void cluster_wait();
// What every lane of `mask` brings, lanes that are not in it 0; until the caller meets others.
const uint64_t* meet(unsigned mask, uint64_t x);

// Memory of the block of who asks: sized by the launch, and of variables that have a size.
char* shared_memory();
char* fixed_memory();
void* of_block(void* p, unsigned rank);

// Copies in bulk come when they are waited for.
void bulk_expect(const void* barrier, unsigned bytes);
void bulk_copy(void* to, const void* from, unsigned bytes, const void* barrier);
void bulk_wait(unsigned long long* barrier, unsigned phase);

inline unsigned lane() { return threadIdx.x % 32; }
template <class T> T* shared() { return reinterpret_cast<T*>(shared_memory()); }
template <class T> T* fixed() { return reinterpret_cast<T*>(fixed_memory()); }
template <class T> T* copied() { return reinterpret_cast<T*>(fixed_memory() + FIXED - 1024); }

template <class A, class B> A bits(B x) {
  A y;
  static_assert(sizeof(A) == sizeof(B), "of one size");
  std::memcpy(&y, &x, sizeof y);
  return y;
}
template <class T> uint64_t packed(T x) {
  uint64_t y = 0;
  std::memcpy(&y, &x, sizeof x);
  return y;
}
template <class T> T unpacked(uint64_t x) {
  T y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline uint16_t to_bf16(float x) {
  const uint32_t b = bits<uint32_t>(x);
  if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
inline uint16_t to_f16(float x) { return bits<uint16_t>(_Float16(x)); }
inline float from_f16(uint16_t x) { return float(bits<_Float16>(x)); }
inline float from_bf16(uint16_t x) { return bits<float>(uint32_t(x) << 16); }
// Of each half.
inline uint32_t larger(uint32_t a, uint32_t b, float (*from)(uint16_t)) {
  uint32_t y = 0;
  for (int at = 0; at < 32; at += 16) {
    const uint16_t first = uint16_t(a >> at), second = uint16_t(b >> at);
    const float x = from(first), z = from(second);
    y |= uint32_t(z > x || z != z ? second : first) << at;
  }
  return y;
}

}  // namespace emulated

inline void __syncthreads() { emulated::barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { emulated::meet(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline unsigned __activemask() { return 1u << emulated::lane(); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __ballot_sync(unsigned mask, bool x) {
  const uint64_t* all = emulated::meet(mask, x);
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= unsigned(all[i] != 0) << i;
  return out;
}
inline bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline bool __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == mask; }
template <class T> T __shfl_sync(unsigned mask, T x, unsigned from) {
  return emulated::unpacked<T>(emulated::meet(mask, emulated::packed(x))[from % 32]);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, unsigned by) {
  return __shfl_sync(mask, x, emulated::lane() ^ by);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned by) {
  return __shfl_sync(mask, x, emulated::lane() < by ? emulated::lane() : emulated::lane() - by);
}
template <class T> unsigned __match_any_sync(unsigned mask, T x) {
  const uint64_t* all = emulated::meet(mask, emulated::packed(x));
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) {
    out |= unsigned(mask >> i & 1 && all[i] == emulated::packed(x)) << i;
  }
  return out;
}
template <class F> unsigned reduced(unsigned mask, unsigned x, unsigned start, F f) {
  const uint64_t* all = emulated::meet(mask, x);
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) start = f(start, unsigned(all[i]));
  }
  return start;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  return reduced(mask, x, 0, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
  return reduced(mask, x, ~0u, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned x) {
  return reduced(mask, x, 0, [](unsigned a, unsigned b) { return a + b; });
}
template <class T> T atomicAdd(T* p, T x) {
  const T old = *p;
  *p += x;
  return old;
}
template <class T> T atomicMax(T* p, T x) {
  const T old = *p;
  *p = old > x ? old : x;
  return old;
}
inline unsigned atomicOr(unsigned* p, unsigned x) {
  const unsigned old = *p;
  *p |= x;
  return old;
}
inline unsigned atomicCAS(unsigned* p, unsigned is, unsigned x) {
  const unsigned old = *p;
  if (old == is) *p = x;
  return old;
}
inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline int __double2hiint(double x) { return int(emulated::bits<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return int(emulated::bits<uint64_t>(x)); }
inline double __hiloint2double(int high, int low) {
  return emulated::bits<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
}
inline long long __double2ll_rn(double x) { return std::llrint(x); }

#endif
