// What stands for common/bulk.cuh on a host.
#pragma once

namespace baracuda {

inline void bulk_begin(u64* barrier) { *barrier = 0; }
inline void bulk_begun() {}
inline void bulk_expect(u64* barrier, u32 bytes) { emulated::bulk_expect(barrier, bytes); }
inline void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier) {
  emulated::bulk_copy(to, from, bytes, barrier);
}
inline void bulk_wait(u64* barrier, u32 phase) { emulated::bulk_wait(barrier, phase); }

}  // namespace baracuda
