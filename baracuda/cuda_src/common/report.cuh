// How a kernel says that an index was out of range: into pinned memory that the host looks at
// before its next call. Nothing waits, and the entry itself is skipped.
#pragma once
#include "types.cuh"
#ifdef __CUDACC__

namespace baracuda {

// `state` is 0: free, 1: being written, 2: to be read by the host, which sets it back.
struct Report {
  u32 state, ticket;
  i64 value, position;
};

// Out of line: no index is expected here, and one entry of many is enough.
inline __device__ __noinline__ void report(Report* to, u32 ticket, i64 value, i64 position) {
  const u32 active = __activemask();
  const u32 lane = threadIdx.x & 31;
  if (__ffs(int(active)) - 1 != int(lane)) return;
  if (*reinterpret_cast<volatile u32*>(&to->state) != 0) return;
  if (atomicCAS(&to->state, 0u, 1u) != 0u) return;
  to->ticket = ticket;
  to->value = value;
  to->position = position;
  __threadfence_system();
  *reinterpret_cast<volatile u32*>(&to->state) = 2;
}

// Whether 0 <= i < n. The unsigned comparison takes both ends.
template <class P> DEVICE bool within(P i, i64 n) { return u64(i64(i)) < u64(n); }

// The same; where it is not, that is reported if somebody listens.
template <class P> DEVICE bool valid(P i, i64 n, Report* to, u32 ticket, i64 position) {
  if (within(i, n)) return true;
  if (to) report(to, ticket, i64(i), position);
  return false;
}

}  // namespace baracuda
#endif
