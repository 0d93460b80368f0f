// Copies in bulk, from memory to where they are kept on chip (sm_90 on): one thread asks for all of
// its bytes, a barrier on chip says when they are there.
#pragma once
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// A barrier of one copier; whoever else waits for it has to be told that it begins.
DEVICE void bulk_begin(u64* barrier) {
  const u32 at = u32(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
}
// After the last one that a thread begins.
DEVICE void bulk_begun() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// How many bytes come in the next phase, from all copies together.
DEVICE void bulk_expect(u64* barrier, u32 bytes) {
  const u32 at = u32(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
// A copy of bytes that are a multiple of 16, as both addresses are.
DEVICE void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier) {
  const u32 target = u32(__cvta_generic_to_shared(to));
  const u32 at = u32(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(target), "l"(from), "r"(bytes), "r"(at) : "memory");
}
// Until the bytes of a phase are there; phases are 0 and 1 in turns.
DEVICE void bulk_wait(u64* barrier, u32 phase) {
  const u32 at = u32(__cvta_generic_to_shared(barrier));
  u32 there;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(there) : "r"(at), "r"(phase) : "memory");
  } while (!there);
}

}  // namespace baracuda
#endif
