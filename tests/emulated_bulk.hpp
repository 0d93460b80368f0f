// What stands for common/bulk.cuh on a host: bytes come when they are waited for, until when nothing
// is known of where they come.
#pragma once

namespace baracuda {

inline void bulk_begin(u64* barrier) { *barrier = 0; }
inline void bulk_begun() {}
inline void bulk_expect(u64* barrier, u32 bytes) { emulated::coming[barrier].expected = bytes; }
inline void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier) {
  emulated::Coming& c = emulated::coming[barrier];
  if ((u64(to) | u64(from) | bytes) % 16 || bytes > c.expected) std::abort();
  c.expected -= bytes;
  c.copies.push_back({to, from, bytes});
  std::memset(to, 0xcd, bytes);
}
inline void bulk_wait(u64* barrier, u32 phase) {
  emulated::Coming& c = emulated::coming[barrier];
  emulated::wait_until([&] { return !c.copies.empty() || (*barrier & 1) != phase; });
  if ((*barrier & 1) != phase) return;
  if (c.expected) std::abort();
  for (const auto& copy : c.copies) std::memcpy(copy.to, copy.from, copy.bytes);
  c.copies.clear();
  ++*barrier;
}

}  // namespace baracuda
