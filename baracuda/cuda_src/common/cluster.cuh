// Clusters: blocks that wait for each other and reach each other's shared memory (sm_90 on).
#pragma once
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// All threads of the cluster have come so far, and see what others wrote before.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// Nothing is said of memory, where it would have every thread wait until the whole device sees all
// that it wrote: what is sent arrives at a Mailbox.
DEVICE void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
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

// What threads wrote to shared memory, for what is sent from there, or will arrive there.
DEVICE void before_sending() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE u32 shared_address(const void* p) {
  u32 address;
  asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(address) : "l"(p));
  return address;
}
// The same place in another block.
DEVICE u32 shared_address(const void* p, u32 block) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
  return there;
}

// Counts the bytes that arrive in the shared memory of its block; good for one delivery.
struct Mailbox {
  u64 state;

  // By one thread, before the cluster meets.
  DEVICE void expect(u32 bytes) {
    const u32 here = shared_address(this);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(here) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(here), "r"(bytes)
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  DEVICE void wait() {
    u32 done = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
                   "[%1], 0; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(shared_address(this)) : "memory");
    }
  }

  // A run of bytes, a multiple of 16, to where `to` is in another block; by one thread.
  DEVICE void send(const void* from, void* to, u32 bytes, u32 block) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_address(to, block)), "r"(shared_address(from)),
                 "r"(bytes), "r"(shared_address(this, block)) : "memory");
  }

  // A vector from registers.
  template <class T, int N> DEVICE void send(const Vec<T, N>& v, T* to, u32 block) {
    constexpr int WORDS = sizeof(v) / 4;
    const u32* word = reinterpret_cast<const u32*>(&v);
    const u32 there = shared_address(to, block), box = shared_address(this, block);
    UNROLL for (int w = 0; w < WORDS; w += lesser(WORDS, 4)) {
      if constexpr (WORDS == 2) {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], "
                     "{%1, %2}, [%3];" ::"r"(there), "r"(word[0]), "r"(word[1]), "r"(box)
                     : "memory");
      } else {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], "
                     "{%1, %2, %3, %4}, [%5];" ::"r"(there + 4 * w), "r"(word[w]),
                     "r"(word[w + 1]), "r"(word[w + 2]), "r"(word[w + 3]), "r"(box) : "memory");
      }
    }
  }
};

}  // namespace baracuda
#endif
