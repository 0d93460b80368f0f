// A long index, sorted digit by digit from the lowest on: entries of a row keep their order.
//
// Of each digit there are three launches. Blocks count the digits of a chunk of entries. A warp for
// each digit sums up its counts. Then blocks sort their chunks on chip, and write them in runs of
// equal digits. Entries that belong to no row get the number behind the last.
#pragma once
#include "index_lists.cuh"
#ifdef __CUDACC__

namespace baracuda {

struct Sorting {
  static constexpr u32 EACH = 16, THREADS = 512, CHUNK = THREADS * EACH, WARPS = THREADS / LANES;

  struct Args {
    const void* index;   // the index itself, or the rows as the digits before have sorted them
    const u32* entries;  // the numbers of these
    u32* rows;           // sorted by this digit too
    u32* order;
    u32* counts;         // of each digit in each chunk; behind them of each digit
    Report* listener;
    i32 step;            // bytes from an entry of the index to the next
    u32 length, extent;  // entries; rows
    u32 low, bits;       // where the digit begins, and how long it is
    u32 chunks, ticket, columns;
    u32 skipped, pad;    // the index that is in range and nowhere, or NONE

    DEVICE u32 digits() const { return 1u << bits; }
    DEVICE u32 digit(u32 row) const { return row >> low & (digits() - 1); }
    DEVICE u32* totals() const { return counts + (i64(chunks) << bits); }
  };

  // A thread's entries are LANES apart, so a warp loads neighbours together.
  static DEVICE u32 first() {
    return blockIdx.x * CHUNK + warp_of_block() * EACH * LANES + (threadIdx.x & 31);
  }
};

// Of a digit: rows by entries of type P. FIRST: they come from the index as it was given.
template <class P, bool FIRST> struct CountDigits : Sorting {
  static constexpr int RESIDENT = 2;

  // The rows of a thread's entries, NONE behind the last of them.
  template <bool REPORTS> static DEVICE void fetch(const Args& args, u32 first, u32 (&row)[EACH]) {
    const u32 last = args.length - 1;
    P given[EACH];
    UNROLL for (u32 e = 0; e < EACH; ++e) {
      const u32 k = first + e * LANES;
      given[e] = *row_of(static_cast<const P*>(args.index), k < last ? k : last, args.step);
    }
    UNROLL for (u32 e = 0; e < EACH; ++e) {
      const u32 k = first + e * LANES;
      row[e] = narrowed(given[e]);
      if (FIRST && (row[e] >= args.extent || row[e] == args.skipped)) {
        if (REPORTS && k <= last) {
          valid(given[e], args.extent, args.listener, args.ticket, i64(k) * args.columns);
        }
        row[e] = args.extent;
      }
      if (k > last) row[e] = NONE;
    }
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 many[];
    const u32 digits = args.digits();
    u32 row[EACH];
    fetch<true>(args, first(), row);
    ROLLED for (u32 d = threadIdx.x; d < digits; d += THREADS) many[d] = 0;
    __syncthreads();
    UNROLL for (u32 e = 0; e < EACH; ++e) {
      if (row[e] != NONE) atomicAdd(many + args.digit(row[e]), 1u);
    }
    __syncthreads();
    ROLLED for (u32 d = threadIdx.x; d < digits; d += THREADS) {
      args.counts[i64(d) * args.chunks + blockIdx.x] = many[d];
    }
  }
};

// By a warp for each digit: how often it is in the chunks before, and in all.
struct SumDigits : Sorting {
  static constexpr int RESIDENT = 4;

  static DEVICE void run(const Args& args) {
    const u32 lane = threadIdx.x & 31;
    const u32 digit = blockIdx.x * (blockDim.x / LANES) + warp_of_block();
    if (digit >= args.digits()) return;
    u32* counts = args.counts + i64(digit) * args.chunks;
    u32 all = 0;
    ROLLED for (u32 first = 0; first < args.chunks; first += LANES) {
      const u32 chunk = first + lane, count = chunk < args.chunks ? counts[chunk] : 0;
      const u32 before = sum_before(count);
      if (chunk < args.chunks) counts[chunk] = all + before;
      all += __shfl_sync(~0u, before + count, LANES - 1);
    }
    if (lane == 0) args.totals()[digit] = all;
  }
};

template <class P, bool FIRST> struct SortDigit : Sorting {
  static constexpr int RESIDENT = 2;

  // The lanes that have the same digit; nobody asks where there is no entry.
  static DEVICE u32 alike(u32 digit, u32 bits, bool there) {
    u32 lanes = __ballot_sync(~0u, there);
    ROLLED for (u32 bit = 0; bit < bits; ++bit) {
      const bool set = digit >> bit & 1;
      const u32 those = __ballot_sync(~0u, set);
      lanes &= set ? those : ~those;
    }
    return lanes;
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    const u32 lane = threadIdx.x & 31, warp = warp_of_block(), digits = args.digits();
    u32* starts = memory;            // of each digit: its first place in the sorted chunk
    u32* places = starts + digits;   // from there to its place among all
    u32* sums = places + digits;
    u32* staged = sums + WARPS;      // the sorted chunk: rows, then numbers
    // Before that, of each warp and digit: how many there are so far.
    u16* seen = reinterpret_cast<u16*>(staged);
    u16* own = seen + warp * digits;
    const u32 from = first();
    u32 row[EACH], place[EACH];
    CountDigits<P, FIRST>::template fetch<false>(args, from, row);
    ROLLED for (u32 d = lane; d < digits; d += LANES) own[d] = 0;
    __syncwarp();
    UNROLL for (u32 e = 0; e < EACH; ++e) {
      const bool there = row[e] != NONE;
      const u32 digit = args.digit(row[e]), same = alike(digit, args.bits, there);
      const u32 earlier = same & ((1u << lane) - 1), old = own[digit];
      place[e] = old + __popc(earlier);
      __syncwarp();
      if (there && !earlier) own[digit] = u16(old + __popc(same));
      __syncwarp();
    }
    __syncthreads();
    u32 before = 0, among = 0;
    ROLLED for (u32 first = 0; first < digits; first += THREADS) {
      const u32 digit = first + threadIdx.x;
      const bool is = digit < digits;
      u32 many = 0;
      UNROLL for (u32 w = 0; w < WARPS; ++w) {
        if (!is) break;
        const u32 here = seen[w * digits + digit];
        seen[w * digits + digit] = u16(many);
        many += here;
      }
      const Scan in_chunk = block_scan<WARPS>(many, sums);
      const Scan in_all = block_scan<WARPS>(is ? args.totals()[digit] : 0, sums);
      if (is) {
        const u32 start = before + in_chunk.before;
        starts[digit] = start;
        places[digit] = among + in_all.before - start +
                        args.counts[i64(digit) * args.chunks + blockIdx.x];
      }
      before += in_chunk.all, among += in_all.all;
    }
    __syncthreads();
    UNROLL for (u32 e = 0; e < EACH; ++e) {
      const u32 digit = args.digit(row[e]);
      place[e] += starts[digit] + own[digit];
    }
    __syncthreads();
    UNROLL for (u32 e = 0; e < EACH; ++e) {
      if (row[e] == NONE) continue;
      const u32 k = from + e * LANES;
      staged[place[e]] = row[e];
      staged[CHUNK + place[e]] = FIRST ? k : args.entries[k];
    }
    __syncthreads();
    ROLLED for (u32 i = threadIdx.x; i < before; i += THREADS) {
      const u32 sorted = staged[i], at = places[args.digit(sorted)] + i;
      args.rows[at] = sorted;
      args.order[at] = staged[CHUNK + i];
    }
  }
};

}  // namespace baracuda
#endif
