// What the threads of a row have, joined: across lanes of a warp, across a block.
//
// The order is that of the threads' numbers and of nothing else, and all of them get the same bits:
// a join has to be commutative to the bit.
#pragma once
#include "cluster.cuh"
#include "math.cuh"
#ifdef __CUDACC__

namespace baracuda {

// What joins two states of a stage. A functor may make one, with what it needs for that made once.
template <int S, class State, class F>
HD auto joiner(const F& f, int) -> decltype(f.joiner()) { return f.joiner(); }
template <int S, class State, class F> HD auto joiner(const F& f, long) {
  return [&f](const State& a, const State& b) { return f.template join<S>(a, b); };
}

// How often a row is gone through before it is known; see Rows.
enum Stages { ONCE = 1, TWICE, CENTRED };

// The same of the lane whose number differs in the bits of `by`.
template <class A, int M> DEVICE Several<A, M> of_lane(const Several<A, M>& s, int by) {
  Several<A, M> other;
  UNROLL for (int i = 0; i < M; ++i) other.at[i] = __shfl_xor_sync(~0u, s.at[i], by);
  return other;
}

// Joins S of each run of `lanes` lanes, a power of two up to 32; every lane of the warp takes part.
// Of each run there are `beside`, a lane of one next to a lane of the other.
template <class S, class Join> DEVICE S join_lanes(S s, int lanes, Join join, int beside = 1) {
  for (int by = lanes / 2; by >= beside; by /= 2) s = join(s, of_lane(s, by));
  return s;
}

// Two rooms, taken in turns: who is in the second has left the first.
template <class S, int BESIDE = 1> struct Rooms {
  S at[2][32 * BESIDE];
};

// Joins S of a block of whole warps, with one barrier; `across` joins those of some lanes. `start`
// is what changes nothing; `turn` counts the joins of a kernel.
template <class S, class Across>
DEVICE S across_block(S s, const S& start, Rooms<S>& rooms, int& turn, Across across) {
  s = across(s, 32);
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (warps == 1) return s;
  S* room = rooms.at[turn & 1];
  turn ^= 1;
  if (lane == 0) room[threadIdx.x / 32] = s;
  __syncthreads();
  return across(lane < warps ? room[lane] : start, 32);
}
// By joins of two.
template <class S, class Join>
DEVICE S join_block(S s, const S& start, Rooms<S>& rooms, int& turn, Join join) {
  const auto across = [&](S s, int lanes) { return join_lanes(s, lanes, join); };
  return across_block(s, start, rooms, turn, across);
}

// By joins of two, for BESIDE runs of threads, a power of two up to 32, which lie as
// `join_lanes` says.
template <int BESIDE, class S, class Join>
DEVICE S join_beside(S s, const S& start, Rooms<S, BESIDE>& rooms, int& turn, Join join) {
  s = join_lanes(s, 32, join, BESIDE);
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (warps == 1) return s;
  S* room = rooms.at[turn & 1];
  turn ^= 1;
  if (lane < BESIDE) room[threadIdx.x / 32 * BESIDE + lane] = s;
  __syncthreads();
  s = lane < warps * BESIDE ? room[lane] : start;
  if constexpr (BESIDE > 1) {
    for (int i = lane + 32; i < warps * BESIDE; i += 32) s = join(s, room[i]);
  }
  return join_lanes(s, 32, join, BESIDE);
}

// Sums M values, a power of two, over a cluster of PARTS blocks of whole warps, with one barrier,
// in two steps between which a thread may do something else: it brings what it has, and it gets the
// sums, as all do. Lanes hand each other what they do not go on with, so that each goes on with one
// value. The room is taken in turns, as above.
template <int PARTS, class A, int M>
DEVICE void bring(Several<A, M> s, Several<A, PARTS * 32 * M> (&rooms)[2], int turn) {
  static_assert(PARTS * M <= 32, "lanes tell one block one value each");
  static_assert((M & (M - 1)) == 0, "lanes have one value each");
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  int value = 0;
  UNROLL for (int left = M / 2, by = 1; left; left /= 2, by *= 2) {
    const bool high = lane & by;
    value += high ? left : 0;
    UNROLL for (int j = 0; j < left; ++j) {
      const A mine = high ? s.at[j + left] : s.at[j], other = high ? s.at[j] : s.at[j + left];
      s.at[j] = mine + __shfl_xor_sync(~0u, other, by);
    }
  }
  A x = s.at[0];
  UNROLL for (int by = M; by < 32; by *= 2) x += __shfl_xor_sync(~0u, x, by);
  A* room = rooms[turn & 1].at;
  if constexpr (PARTS > 1) {
    const int warp = int(blockIdx.x % PARTS) * warps + int(threadIdx.x) / 32;
    if (lane < PARTS * M) *of_block(room + warp * M + value, lane / M) = x;
    cluster_arrive();
  } else {
    if (lane < M) room[threadIdx.x / 32 * M + value] = x;
  }
}
template <int PARTS, class A, int M>
DEVICE Several<A, M> brought(const Several<A, PARTS * 32 * M> (&rooms)[2], int& turn) {
  const int lane = threadIdx.x % 32, all = PARTS * int(blockDim.x / 32);
  const A* room = rooms[turn & 1].at;
  turn ^= 1;
  if constexpr (PARTS > 1) cluster_wait();
  else __syncthreads();
  A x = 0;
  ROLLED for (int i = lane; i < all * M; i += 32) x += room[i];
  UNROLL for (int by = M; by < 32; by *= 2) x += __shfl_xor_sync(~0u, x, by);
  Several<A, M> s;
  UNROLL for (int i = 0; i < M; ++i) s.at[i] = __shfl_sync(~0u, x, i);
  return s;
}
template <int PARTS, class A, int M>
DEVICE Several<A, M> block_sums(
    const Several<A, M>& s, Several<A, PARTS * 32 * M> (&rooms)[2], int& turn) {
  bring<PARTS>(s, rooms, turn);
  return brought<PARTS, A, M>(rooms, turn);
}

// What all threads of a block bring, in the order of a tree; the first thread has it.
template <class A> DEVICE A block_total(A x) {
  __shared__ A part[32];
  UNROLL for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (u32 i = 1; i < blockDim.x / 32; ++i) x += part[i];
  }
  return x;
}

// What blocks left, in the order of their numbers: counts, or shares of rows.
DEVICE i64 all_of(const i32* parts, i32 many) {
  i64 sum = 0;
  for (i32 i = 0; i < many; ++i) sum += parts[i];
  return sum;
}
template <class A> DEVICE A all_of(const A* parts, i32 many) {
  A sum = 0;
  for (i32 i = 0; i < many; ++i) sum += parts[i];
  return sum;
}

// The join that adds.
template <class A, int M> struct Added {
  DEVICE Several<A, M> operator()(Several<A, M> a, const Several<A, M>& b) const {
    UNROLL for (int i = 0; i < M; ++i) a.at[i] += b.at[i];
    return a;
  }
};
// What functors of rows have of it: sums, whatever the stage.
template <class A, int M> struct Summed {
  using State = Several<A, M>;
  template <int> static HD State start() { return {}; }
  template <int> static DEVICE State join(const State& a, const State& b) {
    return Added<A, M>{}(a, b);
  }
};

}  // namespace baracuda
#endif
