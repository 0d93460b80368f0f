// What an inverted index is made of: for every row of a target the list of the elements that go
// there, in ascending order.
//
// Rows are dealt out to teams, a power of 2, one after the other: so that frequent rows, which
// often are the first, meet different teams. A row's place among all is its slot. Where the index
// ascends, or is sorted first, there is one team.
#pragma once
#include "common/index.cuh"
#include "common/report.cuh"
#include "tiles.cuh"
#ifdef __CUDACC__

namespace baracuda {

constexpr u32 PART = 64, LANES = 32, NONE = ~0u;

// The number of a warp, as its first lane knows it: so the compiler sees that lanes agree, and that
// they need not be gathered for what they do together.
DEVICE u32 warp_of_block() { return __shfl_sync(~0u, threadIdx.x / LANES, 0); }

// What all kernels of rows know. The parts of lists are rows of their own: 2 c for the list that
// began before chunk c of PART positions, 2 c + 1 for the one that begins in it.
struct Lists {
  u32* order;    // elements, list by list
  u32* offsets;  // where the list of a slot begins, and the end
  u32* edges;    // of each chunk: the slots of its first and of its last position, if long, or NONE
  u32* done;     // for each column of warps: parts that are there, from each part on and of lists
};

struct Dealt {
  u32 length, rows, slots, shift;  // elements; rows; slots of a team; log2 of teams

  DEVICE u32 row(u32 team, u32 slot) const { return (slot << shift) + team; }
  DEVICE u32 all() const { return slots << shift; }
  // Of a slot among those of all teams.
  DEVICE u32 row_of(u32 slot) const { return row(slot / slots, slot % slots); }
  // The place of a row's list among all.
  DEVICE u32 place(u32 row) const { return (row & ((1u << shift) - 1)) * slots + (row >> shift); }
};

// A row, `step` bytes from the next: one multiplication away.
template <class T> DEVICE T* row_of(T* first, u32 row, i32 step) {
  return (T*)((const char*)first + i64(i32(row)) * step);
}

// Of numbers, one for each thread of a block: the sum of those before this one's, and of all.
struct Scan {
  u32 before, all;
};
template <u32 WARPS> DEVICE Scan block_scan(u32 x, u32* sums) {
  const u32 lane = threadIdx.x & 31, warp = warp_of_block(), here = sum_before(x);
  if (lane == LANES - 1) sums[warp] = here + x;
  __syncthreads();
  const u32 other = lane < WARPS ? sums[lane] : 0;
  __syncthreads();
  const u32 before = __reduce_add_sync(~0u, lane < warp ? other : 0);
  return {before + here, __reduce_add_sync(~0u, other)};
}

}  // namespace baracuda
#endif
