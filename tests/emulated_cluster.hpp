// What stands for common/cluster.cuh on a host: messages arrive at once, in memory of the receiver.
#pragma once

namespace baracuda {

inline void cluster_arrive() { emulated::cluster_arrive(); }
inline void cluster_arrive_relaxed() { emulated::cluster_arrive(); }
inline void cluster_wait() { emulated::cluster_wait(); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
template <class T> T* of_block(T* p, u32 block) { return emulated::of_block(p, block); }
inline void before_sending() {}

struct Mailbox {
  i64 missing;

  void expect(u32 bytes) { missing = bytes; }
  void wait() {
    emulated::wait_until([this] { return missing <= 0; });
    if (missing < 0) std::fprintf(stderr, "more arrived than was expected\n"), std::abort();
  }
  void send(const void* from, void* to, u32 bytes, u32 block) {
    if (bytes % 16 || u64(from) % 16 || u64(to) % 16) {
      std::fprintf(stderr, "sent from, to, or in what is no multiple of 16\n"), std::abort();
    }
    std::memcpy(emulated::of_block(static_cast<char*>(to), block), from, bytes);
    emulated::of_block(this, block)->missing -= bytes;
  }
  template <class T, int N> void send(const Vec<T, N>& v, T* to, u32 block) {
    store<N>(emulated::of_block(to, block), v);
    emulated::of_block(this, block)->missing -= sizeof(v);
  }
};

}  // namespace baracuda
