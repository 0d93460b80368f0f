// Scatter of whole rows: one index for each row of values, as where embeddings get their gradient.
//
// The index is inverted first: for every row of the target the list of its elements, in ascending
// order. Then each row is the sum of its list, written once. Every order is fixed, so are the bits.
// A list longer than PART is summed in parts, cut where the position in all lists is a multiple of
// PART; who finishes last adds up the parts, in their order.
//
// Rows are dealt out to `blocks` blocks, a power of 2, one after the other: so that frequent rows,
// which often are the first, meet different blocks. A row's place among all is its slot.
#pragma once
#include "index.cuh"
#include "tiles.cuh"
#ifdef __CUDACC__

namespace baracuda {

constexpr u32 PART = 64, LANES = 32;

// What all kernels of rows know. The parts of lists are rows of their own: 2 c for the list that
// began before chunk c of PART positions, 2 c + 1 for the one that begins in it.
struct Lists {
  u32* order;    // elements, list by list
  u32* offsets;  // where the list of a slot begins, and the end
  u32* firsts;   // the first element of a list
  u32* edges;    // of each chunk: the slots of its first and of its last position
  u32* done;     // of each chunk and column of warps: parts summed of the list that begins there
};

struct Dealt {
  u32 length, rows, slots, shift;  // elements; rows; slots of a block; log2 of blocks

  DEVICE u32 slot(u32 row) const {
    return (row & ((1u << shift) - 1)) * slots + (row >> shift);
  }
  DEVICE u32 row(u32 slot) const {
    const u32 block = slot / slots;
    return ((slot - block * slots) << shift) + block;
  }
  DEVICE u32 all() const { return slots << shift; }
};

// A block inverts the index for its rows: it counts, for each of its warps, the elements of every
// row, and then gives them their places. A warp reads in order, a part of its own.
template <class P, int BATCH> struct Invert {
  static constexpr int RESIDENT = 1;

  struct Args : Lists {
    const P* index;
    Dealt dealt;
    Report* listener;
    i64 stride;  // of index
    u32 ticket, steps, counters, columns;  // steps of a warp, an element for each lane
  };

  // Of numbers, one for each warp: the sum of those before this one's, and of all.
  struct Scan {
    u32 before, all;
  };
  static DEVICE Scan block_scan(u32 x, u32* sums) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / LANES;
    if (lane == 0) sums[warp] = x;
    __syncthreads();
    const u32 other = lane < blockDim.x / LANES ? sums[lane] : 0;
    __syncthreads();
    return {__reduce_add_sync(~0u, lane < warp ? other : 0), __reduce_add_sync(~0u, other)};
  }

  static DEVICE void run(const Args& args) {
    // Counts: [warps][slots]; asking, the same: which lanes of a step have an element of a slot;
    // steps: [warps][steps], the lanes that have an element of this block; sums: one for each warp.
    extern __shared__ __align__(16) u32 memory[];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const u32 slots = args.dealt.slots, low = blockIdx.x * slots, mask = gridDim.x - 1;
    u32* counts = memory;
    u32* mine = counts + warp * slots;
    u32* asking = mine + warps * slots;
    u32* steps = counts + 2 * warps * slots + warp * args.steps;
    u32* sums = counts + warps * (2 * slots + args.steps);
    const u32 everyone = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < args.counters; i += everyone) {
      args.done[i] = 0;
    }
    for (u32 i = threadIdx.x * 4; i < 2 * warps * slots; i += blockDim.x * 4) {
      store<4>(memory + i, Vec<u32, 4>{});
    }
    __syncthreads();
    // Count. A warp reads args.steps times LANES elements.
    const u32 begin = warp * args.steps * LANES + lane;
    const P* from = args.index + i64(begin) * args.stride;
    const i64 stride = args.stride * LANES;
    u32 before = 0, highest = 0;
    for (u32 s = 0; s < args.steps; s += BATCH) {
      u32 index[BATCH];
      UNROLL for (int b = 0; b < BATCH; ++b, from += stride) {
        // What is not there counts as out of range, which the count leaves out.
        const bool there = s + b < args.steps && begin + (s + b) * LANES < args.dealt.length;
        index[b] = there ? narrowed(*from) : args.dealt.rows;
        if (there) highest = highest > index[b] ? highest : index[b];
      }
      UNROLL for (int b = 0; b < BATCH; ++b) {
        const u32 block = index[b] & mask;
        const bool inside = index[b] < args.dealt.rows, is = inside && block == blockIdx.x;
        before += inside && block < blockIdx.x;
        const u32 those = __ballot_sync(~0u, is);
        if (lane == 0 && s + b < args.steps) steps[s + b] = those;
        if (is) atomicAdd(mine + (index[b] >> args.dealt.shift), 1u);
      }
    }
    before = block_scan(__reduce_add_sync(~0u, before), sums).all;
    // A thread for each slot: counts to places, all warps of a slot in turn.
    for (u32 first = 0; first < slots; first += blockDim.x) {
      const u32 slot = first + threadIdx.x;
      u32 total = 0;
      if (slot < slots) {
        UNROLL for (u32 w = 0; w < 32; ++w) {
          if (w < warps) total += counts[w * slots + slot];
        }
      }
      u32 sum = total;
      UNROLL for (u32 d = 1; d < LANES; d *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      const Scan scan = block_scan(__shfl_sync(~0u, sum, LANES - 1), sums);
      u32 place = before + scan.before + sum - total;
      before += scan.all;
      if (slot < slots) {
        args.offsets[low + slot] = place;
        for (u32 w = 0; w < warps; ++w) {
          const u32 count = counts[w * slots + slot];
          counts[w * slots + slot] = place;
          place += count;
        }
      }
    }
    __syncthreads();
    if (blockIdx.x == mask && threadIdx.x == 0) args.offsets[low + slots] = before;
    // Place, in the steps that have something to place.
    for (u32 first = 0; first < args.steps; first += LANES) {
      const u32 all = first + lane < args.steps ? steps[first + lane] : 0;
      for (u32 left = __ballot_sync(~0u, all != 0); left; left &= left - 1) {
        const u32 s = __ffs(int(left)) - 1;
        const bool is = __shfl_sync(~0u, all, s) >> lane & 1;
        const u32 k = begin + (first + s) * LANES;
        u32 slot = 0, alike = 0, place = 0;
        if (is) {
          slot = u32(args.index[i64(k) * args.stride]) >> args.dealt.shift;
          atomicOr(asking + slot, 1u << lane);
        }
        __syncwarp();
        if (is) alike = asking[slot], place = mine[slot];
        __syncwarp();
        if (is) {
          const u32 rank = __popc(alike & ((1u << lane) - 1)), at = place + rank;
          if (rank == 0) asking[slot] = 0, mine[slot] = place + __popc(alike);
          args.order[at] = k;
          if (at == args.offsets[low + slot]) args.firsts[low + slot] = k;
          if (at % PART == 0) args.edges[2 * (at / PART)] = low + slot;
          if (at % PART == PART - 1) args.edges[2 * (at / PART) + 1] = low + slot;
        }
        __syncwarp();
      }
    }
    if (highest < args.dealt.rows || !args.listener || blockIdx.x) return;
    ROLLED for (u32 k = begin, s = 0; s < args.steps && k < args.dealt.length; ++s, k += LANES) {
      valid(args.index[i64(k) * args.stride], args.dealt.rows, args.listener, args.ticket,
            i64(k) * args.columns);
    }
  }
};

template <class T> struct RowsArgs : Lists {
  const T* values;
  T* target;
  Acc<T>* parts;
  Dealt dealt;
  i64 step_values, step_target;
  u32 columns, chunks;  // elements of a row; warps side by side in it
  Extent<u32> across;   // `chunks`, to divide by
  u32 long_tasks, tasks, pad;  // warps for parts of long lists; warps in all
};

// The sum of a stretch of a list, V columns a lane, ONCE elements under way.
template <int V, int ONCE, class T>
DEVICE void sum_list(const RowsArgs<T>& args, u32 begin, u32 end, u32 column, Acc<T> (&x)[V]) {
  ROLLED for (u32 i = begin; i < end; i += ONCE) {
    Vec<T, V> value[ONCE];
    UNROLL for (int j = 0; j < ONCE; ++j) {
      if (i + j < end) {
        value[j] = load<V>(args.values + i64(args.order[i + j]) * args.step_values + column);
      }
    }
    UNROLL for (int j = 0; j < ONCE; ++j) {
      if (i + j < end) {
        Acc<T> y[V];
        widen(value[j], y);
        UNROLL for (int v = 0; v < V; ++v) x[v] += y[v];
      }
    }
  }
}

// A warp takes a chunk of positions, of it what belongs to long lists, in vectors of half the width
// and more of them under way: the few that are frequent must not be the last to be done. Or it
// takes, of ROWS rows, the short lists, the first elements of all at once.
template <class T, int V, int ROWS, bool ADD> struct SumLists {
  static constexpr int RESIDENT = 4, HALF = greater(V / 2, 1), ONCE = 8;
  static constexpr int STEP = lesser(HALF, 16 / int(sizeof(Acc<T>)));
  using Args = RowsArgs<T>;

  static DEVICE void run(const Args& args) {
    const u32 lane = threadIdx.x & 31;
    const u32 task = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (task >= args.tasks) return;
    if (task < args.long_tasks) {
      constexpr u32 TWO = V / HALF;
      const u32 chunk = args.across.divide(task / TWO);
      const u32 column = ((task - chunk * args.chunks * TWO) * LANES + lane) * HALF;
      const u32 active = __ballot_sync(~0u, column < args.columns);
      if (column < args.columns) of_chunk(args, chunk, column, active);
    } else {
      const u32 rest = task - args.long_tasks, group = args.across.divide(rest);
      of_rows(args, group * ROWS, ((rest - group * args.chunks) * LANES + lane) * V, lane);
    }
  }

  static DEVICE void of_chunk(const Args& args, u32 chunk, u32 column, u32 active) {
    const u32 low = chunk * PART, all = args.offsets[args.dealt.all()];
    if (low >= all) return;
    const u32 high = all - low < PART ? all : low + PART;
    ROLLED for (u32 side = 0; side < 2; ++side) {
      // A long list that begins in a chunk fills it.
      if (side && high != low + PART) continue;
      const u32 slot = args.edges[2 * chunk + side];
      const u32 begin = args.offsets[slot], end = args.offsets[slot + 1];
      if (end - begin <= PART || (begin >= low) != (side == 1)) continue;
      Acc<T> x[HALF] = {};
      const u32 from = begin < low ? low : begin, to = end < high ? end : high;
      sum_list<HALF, ONCE>(args, from, to, column, x);
      Acc<T>* sum = args.parts + i64(2 * chunk + side) * args.columns + column;
      UNROLL for (int v = 0; v < HALF; v += STEP) {
        Vec<Acc<T>, STEP> part;
        UNROLL for (int j = 0; j < STEP; ++j) part.set(j, x[v + j]);
        store<STEP>(sum + v, part);
      }
      join(args, slot, begin / PART, (end - 1) / PART, column, active);
    }
  }

  // The parts of a list, of chunks from `low` to `high`, by the warp that finishes last.
  static DEVICE void join(const Args& args, u32 slot, u32 low, u32 high, u32 column, u32 active) {
    // The leader's fence is for what all lanes have stored.
    __syncwarp(active);
    __threadfence();
    u32 others = 0;
    const u32 leader = __ffs(int(active)) - 1;
    // Warps side by side count for each other: whoever is last then joins its own columns of all.
    u32* done = args.done + low * (V / HALF * args.chunks) + column / (LANES * HALF);
    if ((threadIdx.x & 31) == leader) others = atomicAdd(done, 1u);
    if (__shfl_sync(active, others, leader) != high - low) return;
    __threadfence();
    __syncwarp(active);
    Acc<T> x[HALF] = {};
    ROLLED for (u32 c = low; c <= high; c += ONCE) {
      Vec<Acc<T>, STEP> y[ONCE][HALF / STEP];
      UNROLL for (int j = 0; j < ONCE; ++j) {
        const u32 at = c + j;
        const Acc<T>* part = args.parts + i64(2 * at + (at == low)) * args.columns + column;
        UNROLL for (int v = 0; v < HALF / STEP; ++v) {
          y[j][v] = at <= high ? load<STEP>(part + v * STEP) : Vec<Acc<T>, STEP>{};
        }
      }
      UNROLL for (int j = 0; j < ONCE; ++j) {
        UNROLL for (int v = 0; v < HALF; ++v) x[v] += y[j][v / STEP].get(v % STEP);
      }
    }
    put<ADD>(args.target + i64(args.dealt.row(slot)) * args.step_target + column, x);
  }

  static DEVICE void of_rows(const Args& args, u32 row, u32 column, u32 lane) {
    const u32 rows = lesser(ROWS, int(args.dealt.rows - row));
    u32 begin = 0, length = 0, first = 0;
    if (lane < rows) {
      const u32 slot = args.dealt.slot(row + lane);
      begin = args.offsets[slot];
      length = args.offsets[slot + 1] - begin;
      first = args.firsts[slot];
    }
    Vec<T, V> value[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const u32 k = __shfl_sync(~0u, first, r), n = __shfl_sync(~0u, length, r);
      value[r] = Vec<T, V>{};
      if (n && column < args.columns) {
        value[r] = load<V>(args.values + i64(k) * args.step_values + column);
      }
    }
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const u32 n = __shfl_sync(~0u, length, r), from = __shfl_sync(~0u, begin, r);
      if (r >= rows || n > PART || column >= args.columns) continue;
      Acc<T> x[V];
      widen(value[r], x);
      if (n > 1) sum_list<V, 4>(args, from + 1, from + n, column, x);
      put<ADD>(args.target + i64(row + r) * args.step_target + column, x);
    }
  }
};

}  // namespace baracuda
#endif
