// The inverse of an index in one launch. No atomics in memory, so that all is in a fixed place.
#pragma once
#include "common/cluster.cuh"
#include "index_lists.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Asks the L2 for a line, and to keep it longer than others.
DEVICE void prefetch_kept(const char* p) {
  asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(p));
}

// A team, a cluster of CLUSTER blocks, inverts the index for its rows. Each block takes a part of
// the index, in order, a round of elements at a time. What is its team's is packed, for that is
// little; COUNTERS warps count it by slots, each a stretch of it, and so number what is alike. Then
// the blocks tell each other how much they have, and give their elements their places.
template <class P, int CLUSTER> struct Invert {
  static constexpr int RESIDENT = 2, EACH = 16;
  static constexpr u32 THREADS = 512, COUNTERS = 8, ROUND = THREADS * EACH, LONG = 1u << 31;
  static constexpr u32 WARPS = THREADS / LANES, PER = WARPS / CLUSTER;  // PER: warps of a range

  struct Args : Lists {
    const P* index;
    const char* values;
    Dealt dealt;
    Report* listener;
    i32 step, step_values;                  // bytes from an element to the next
    u32 ticket, length, counters, columns;  // length: elements of a block
    Extent<u32> lines;                      // of 128 bytes, of a row of values
    u32 ahead;                              // lines to bring into the L2
    u32 skipped, pad;                       // the index that is in range and nowhere, or NONE
  };

  static DEVICE void sync() {
    if constexpr (CLUSTER > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }
  template <class T> static DEVICE T* in_block(T* p, u32 rank) {
    if constexpr (CLUSTER > 1) return of_block(p, rank);
    return p;
  }

  // In shared memory. Counts hold two slots a word.
  struct Block {
    const Args& args;
    u32 lane, warp, team, rank, slots, words, from, end;
    u32* packed;  // of a round: slots, and numbers in it
    u16* ranks;   // how many of the same slot a warp had before
    u32* counts;  // [COUNTERS][words], in the end of what the warps before have
    u32* totals;  // of slots
    u32* starts;  // in the list of a slot, of the block's elements
    u32* told;    // by each block, the totals of the slots that this one does
    u32* bases;   // by each block, what it has of slots and teams before those
    u32* sums;    // two for each warp
    u32 base = 0;  // what this thread has seen of teams before

    DEVICE Block(const Args& args, u32* memory) : args(args) {
      lane = threadIdx.x & 31, warp = warp_of_block();
      team = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
      slots = args.dealt.slots, words = slots / 2;
      packed = memory;
      ranks = reinterpret_cast<u16*>(packed + ROUND);
      counts = packed + ROUND + ROUND / 2;
      totals = counts + COUNTERS * words;
      starts = totals + slots;
      told = starts + slots + 1;
      bases = told + slots;
      sums = bases + CLUSTER;
      from = rank * args.length;
      end = from + args.length < args.dealt.length ? from + args.length : args.dealt.length;
    }

    // Pack and count a round, `totals` becoming those of it or of all rounds. How much there is.
    // `strange` tells whether an index is out of range.
    DEVICE u32 tally(u32 round, bool add, bool& strange) {
      // All loads at once, of neighbours; then each thread takes EACH elements in order.
      P given[EACH];
      UNROLL for (u32 e = 0; e < EACH; ++e) {
        const u32 k = round + (warp * EACH + e) * LANES + lane, last = args.dealt.length - 1;
        given[e] = *row_of(args.index, k < last ? k : last, args.step);
      }
      ROLLED for (u32 i = threadIdx.x * 4; i < COUNTERS * words; i += THREADS * 4) {
        store<4>(counts + i, Vec<u32, 4>{});
      }
      UNROLL for (u32 e = 0; e < EACH; ++e) {
        const u32 thread = warp * LANES + e * 2 + lane / EACH;
        const bool there = round + (warp * EACH + e) * LANES + lane < end;
        const u32 index = there ? narrowed(given[e]) : NONE;
        // As if out of range: where somebody listens, one team looks again, and reports nothing.
        const u32 kept = index == args.skipped ? NONE : index;
        packed[thread * EACH + (lane / 4 % 4 ^ e % 4) * 4 + lane % 4] = kept;
      }
      __syncwarp();
      const u32 begin = round + threadIdx.x * EACH, shift = args.dealt.shift;
      u32 index[EACH], many = 0, good = 0;
      UNROLL for (u32 q = 0; q < EACH / 4; ++q) {
        // In an order in which all banks are met.
        const auto quad = load<4>(packed + threadIdx.x * EACH + (q ^ threadIdx.x / 2 % 4) * 4);
        UNROLL for (u32 i = 0; i < 4; ++i) index[q * 4 + i] = quad.get(i);
      }
      UNROLL for (u32 e = 0; e < EACH; ++e) {
        const u32 whose = index[e] & ((1u << shift) - 1);
        const bool inside = index[e] < args.dealt.rows;
        good += inside;
        base += inside && whose < team;
        // What is another's, or nobody's, is out of range from here on.
        if (!inside || whose != team) index[e] = NONE;
        many += index[e] != NONE;
      }
      strange |= begin < end && good < (end - begin < EACH ? end - begin : u32(EACH));
      const Scan scan = block_scan<WARPS>(many, sums);
      u32 at = scan.before;
      UNROLL for (u32 e = 0; e < EACH; ++e) {
        if (index[e] == NONE) continue;
        packed[at++] = index[e] >> shift << 13 | (threadIdx.x * EACH + e);
      }
      __syncthreads();
      if (warp < COUNTERS) count(scan.all);
      __syncthreads();
      ROLLED for (u32 word = threadIdx.x; word < words; word += THREADS) {
        u32 total = 0;
        UNROLL for (u32 c = 0; c < COUNTERS; ++c) {
          const u32 here = counts[c * words + word];
          counts[c * words + word] = total;
          total += here;
        }
        Vec<u32, 2> sum{total & 0xffff, total >> 16};
        if (add) sum.at[0] += totals[2 * word], sum.at[1] += totals[2 * word + 1];
        store<2>(totals + 2 * word, sum);
      }
      __syncthreads();
      return scan.all;
    }

    static DEVICE u32 stretch(u32 all) { return ceil_div(all, COUNTERS * LANES) * LANES; }
    DEVICE u32 before(u32 counter, u32 slot) const {
      return counts[counter * words + slot / 2] >> slot % 2 * 16 & 0xffff;
    }

    // By a warp, its stretch. Lanes that have the same slot are few, and found by what they add.
    DEVICE void count(u32 all) {
      const u32 many = stretch(all), first = warp * many;
      const u32 last = first + many < all ? first + many : all;
      ROLLED for (u32 i = first + lane; i - lane < last; i += LANES) {
        const bool is = i < last;
        const u32 slot = is ? packed[i] >> 13 : 0, old = before(warp, slot);
        __syncwarp();
        if (is) atomicAdd(counts + warp * words + slot / 2, 1u << slot % 2 * 16);
        __syncwarp();
        const bool several = is && before(warp, slot) - old > 1;
        const u32 those = __ballot_sync(~0u, several);
        u32 earlier = 0;
        if (several) earlier = __popc(__match_any_sync(those, slot) & ((1u << lane) - 1));
        if (is) ranks[i] = u16(old + earlier);
      }
    }

    // Where lists begin, and in them what is of each block: a block does a range of the slots.
    DEVICE void lists() {
      const u32 share = slots / CLUSTER, range = warp / PER;
      u32 sum = 0;
      u32* to = in_block(told, range) + rank * share;
      _Pragma("unroll 4") for (u32 i = warp % PER * LANES + lane; i < share; i += PER * LANES) {
        const u32 total = totals[range * share + i];
        to[i] = total;
        sum += total;
      }
      sum = __reduce_add_sync(~0u, sum);
      const u32 others = __reduce_add_sync(~0u, base);
      if (lane == 0) sums[warp] = sum, sums[WARPS + warp] = others;
      __syncthreads();
      if (threadIdx.x < CLUSTER) {
        u32 before = 0;
        UNROLL for (u32 w = 0; w < WARPS; ++w) {
          before += sums[WARPS + w] + (w < threadIdx.x * PER ? sums[w] : 0);
        }
        in_block(bases, threadIdx.x)[rank] = before;
      }
      sync();
      u32 place = 0;
      UNROLL for (u32 r = 0; r < CLUSTER; ++r) place += bases[r];
      ROLLED for (u32 first = 0; first < share; first += THREADS) {
        const u32 i = first + threadIdx.x, slot = rank * share + i;
        u32 of[CLUSTER], all = 0;
        UNROLL for (u32 r = 0; r < CLUSTER; ++r) {
          of[r] = i < share ? told[r * share + i] : 0;
          all += of[r];
        }
        const Scan scan = block_scan<WARPS>(all, sums);
        u32 at = place + scan.before;
        place += scan.all;
        if (i >= share) continue;
        const u32 is_long = all > PART ? LONG : 0;
        UNROLL for (u32 r = 0; r < CLUSTER; ++r) {
          in_block(starts, r)[slot] = at | is_long;
          at += of[r];
        }
        if (slot == slots - 1) in_block(starts, 0)[slots] = at;
      }
      sync();
    }

    DEVICE void put(u32 round, u32 all) {
      const u32 many = stretch(all);
      ROLLED for (u32 i = threadIdx.x; i < all; i += THREADS) {
        const u32 slot = packed[i] >> 13, start = starts[slot];
        const u32 at = (start & ~LONG) + before(i / many, slot) + ranks[i];
        const u32 edge = start & LONG ? team * slots + slot : NONE;
        args.order[at] = round + packed[i] % ROUND;
        if (at % PART == 0) args.edges[2 * (at / PART)] = edge;
        if (at % PART == PART - 1) args.edges[2 * (at / PART) + 1] = edge;
      }
    }
  };

  // Memory is idle while the index is inverted: some rows are brought into the L2.
  static DEVICE void ahead_of_use(const Args& args) {
    const u32 every = gridDim.x * THREADS;
    ROLLED for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < args.ahead; i += every) {
      const u32 row = args.lines.divide(i), line = i - row * args.lines.size;
      prefetch_kept(row_of(args.values, row, args.step_values) + line * 128);
    }
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    Block block(args, memory);
    const bool once = args.length <= ROUND;
    // Nobody writes to a block that has not started.
    if constexpr (CLUSTER > 1) cluster_arrive();
    u32 all = 0;
    bool strange = false;
    // First counting, then placing. Of a single round all is still there.
    ROLLED for (u32 placing = 0; placing < 2; ++placing) {
      u32 round = block.from;
      do {
        if (!once || !placing) {
          all = block.tally(round, !placing && round != block.from, strange);
        }
        if (placing) {
          block.put(round, all);
          __syncthreads();
          ROLLED for (u32 i = threadIdx.x; i < block.slots && !once; i += THREADS) {
            block.starts[i] += block.totals[i];
          }
        }
        round += ROUND;
      } while (round < block.end);
      if (placing) break;
      ahead_of_use(args);
      if constexpr (CLUSTER > 1) cluster_wait();
      block.lists();
      // Memory is written only now: a cluster that waits, waits for that too.
      const u32 every = gridDim.x * THREADS, last = block.team == gridDim.x / CLUSTER - 1;
      ROLLED for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < args.counters; i += every) {
        args.done[i] = 0;
      }
      if (block.rank) continue;
      ROLLED for (u32 i = threadIdx.x; i < block.slots + last; i += THREADS) {
        args.offsets[block.team * block.slots + i] = block.starts[i] & ~LONG;
      }
    }
    if (!strange || !args.listener || block.team) return;
    // A thread has seen the same EACH elements of every round.
    ROLLED for (u32 i = block.from + threadIdx.x * EACH; i < block.end; i += ROUND) {
      ROLLED for (u32 k = i; k < i + EACH && k < block.end; ++k) {
        valid(*row_of(args.index, k, args.step), args.dealt.rows, args.listener, args.ticket,
              i64(k) * args.columns);
      }
    }
  }
};

}  // namespace baracuda
#endif
