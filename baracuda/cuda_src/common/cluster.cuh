// Clusters: blocks that wait for each other and reach each other's shared memory (sm_90 on).
#pragma once
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// All threads of the cluster have come so far, and see what others wrote before.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// The same of threads that have only read what is theirs no more: nothing written is waited for.
DEVICE void cluster_leave() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// The same place in the shared memory of another block.
template <class T> DEVICE T* of_block(T* p, u32 block) {
  u64 there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<u64>(p)), "r"(block));
  return reinterpret_cast<T*>(there);
}

}  // namespace baracuda
#endif
