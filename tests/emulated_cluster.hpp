// What stands for common/cluster.cuh on a host.
#pragma once

namespace baracuda {

inline void cluster_arrive() { emulated::cluster_arrive(); }
inline void cluster_leave() { emulated::cluster_arrive(); }
inline void cluster_wait() { emulated::cluster_wait(); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
template <class T> T* of_block(T* p, u32 block) { return static_cast<T*>(emulated::of_block(p, block)); }

}  // namespace baracuda
