// Entries of a long index, dealt out to the teams that invert it: each team then reads its own
// entries only, not all of them.
//
// Three launches. Blocks count the entries that each team has in a chunk. A warp for each team sums
// up its counts. Then every entry goes to its place, so that a team's entries keep their order.
// Entries out of range are left out.
#pragma once
#include "index_lists.cuh"
#ifdef __CUDACC__

namespace baracuda {

// What the launches share: EACH entries of a thread, of one chunk of the index.
template <class P> struct Dealing {
  static constexpr int EACH = 16;
  static constexpr u32 THREADS = 512, CHUNK = THREADS * EACH, WARPS = THREADS / LANES;

  struct Args {
    const P* index;
    u32* entries;  // the row and the number of each; behind them the counts
    Dealt dealt;
    Report* listener;
    i32 step;      // bytes from an entry of the index to the next
    u32 ticket, columns, chunks;
    u32 skipped;   // the index that is in range and nowhere, or NONE
    u32 pad;

    DEVICE u32 teams() const { return 1u << dealt.shift; }
    // Of each team; of each team and chunk.
    DEVICE u32* totals() const { return entries + 2 * i64(dealt.length); }
    DEVICE u32* counts() const { return totals() + teams(); }
  };

  // A thread's entries are LANES apart, so a warp loads neighbours together.
  static DEVICE u32 first() {
    return blockIdx.x * CHUNK + warp_of_block() * EACH * LANES + (threadIdx.x & 31);
  }
  static DEVICE void fetch(const Args& args, u32 first, P (&given)[EACH]) {
    const u32 last = args.dealt.length - 1;
    UNROLL for (int e = 0; e < EACH; ++e) {
      const u32 k = first + e * LANES;
      given[e] = *row_of(args.index, k < last ? k : last, args.step);
    }
  }
  // The lanes whose rows belong to the same team; nobody asks where a row is NONE.
  static DEVICE u32 alike(const Args& args, u32 row) {
    u32 lanes = __ballot_sync(~0u, row != NONE);
    ROLLED for (u32 bit = 0; bit < args.dealt.shift; ++bit) {
      const bool set = row >> bit & 1;
      const u32 those = __ballot_sync(~0u, set);
      lanes &= set ? those : ~those;
    }
    return lanes;
  }
  // The row of entry k, or NONE where it belongs nowhere.
  static DEVICE u32 row(const Args& args, P given, u32 k) {
    const u32 row = narrowed(given);
    const bool there = k < args.dealt.length && row < args.dealt.rows && row != args.skipped;
    return there ? row : NONE;
  }
};

template <class P> struct CountEntries {
  static constexpr int RESIDENT = 2;
  using D = Dealing<P>;
  using Args = typename D::Args;

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 many[];
    const u32 teams = args.teams();
    const u32 from = D::first();
    P given[D::EACH];
    D::fetch(args, from, given);
    ROLLED for (u32 team = threadIdx.x; team < teams; team += D::THREADS) many[team] = 0;
    __syncthreads();
    UNROLL for (int e = 0; e < D::EACH; ++e) {
      const u32 k = from + e * LANES, row = D::row(args, given[e], k);
      if (row != NONE) {
        atomicAdd(many + (row & (teams - 1)), 1u);
      } else if (k < args.dealt.length) {
        valid(given[e], args.dealt.rows, args.listener, args.ticket, i64(k) * args.columns);
      }
    }
    __syncthreads();
    ROLLED for (u32 team = threadIdx.x; team < teams; team += D::THREADS) {
      args.counts()[i64(team) * args.chunks + blockIdx.x] = many[team];
    }
  }
};

// By a warp for each team: what it has in the chunks before, and in all.
template <class P> struct SumEntries {
  static constexpr int RESIDENT = 4;
  using Args = typename Dealing<P>::Args;

  static DEVICE void run(const Args& args) {
    const u32 lane = threadIdx.x & 31;
    const u32 team = blockIdx.x * (blockDim.x / LANES) + warp_of_block();
    if (team >= args.teams()) return;
    u32* counts = args.counts() + i64(team) * args.chunks;
    u32 all = 0;
    ROLLED for (u32 first = 0; first < args.chunks; first += LANES) {
      const u32 chunk = first + lane, count = chunk < args.chunks ? counts[chunk] : 0;
      const u32 before = sum_before(count);
      if (chunk < args.chunks) counts[chunk] = all + before;
      all += __shfl_sync(~0u, before + count, LANES - 1);
    }
    if (lane == 0) args.totals()[team] = all;
  }
};

template <class P> struct DealEntries {
  static constexpr int RESIDENT = 2;
  using D = Dealing<P>;
  using Args = typename D::Args;

  static DEVICE void run(const Args& args) {
    // Of each warp and team the entries so far; where a team's begin, and the sums of warps.
    extern __shared__ __align__(16) u32 memory[];
    const u32 lane = threadIdx.x & 31, warp = warp_of_block(), teams = args.teams();
    u32* places = memory;
    u32* sums = places + teams;
    u16* seen = reinterpret_cast<u16*>(sums + D::WARPS);
    u16* own = seen + warp * teams;
    const u32 from = D::first();
    P given[D::EACH];
    D::fetch(args, from, given);
    ROLLED for (u32 team = lane; team < teams; team += LANES) own[team] = 0;
    __syncwarp();
    u32 before[D::EACH];
    UNROLL for (int e = 0; e < D::EACH; ++e) {
      const u32 row = D::row(args, given[e], from + e * LANES), team = row & (teams - 1);
      const u32 alike = D::alike(args, row);
      const u32 earlier = alike & ((1u << lane) - 1);
      const u32 old = row == NONE ? 0 : own[team];
      before[e] = old + __popc(earlier);
      __syncwarp();
      if (row != NONE && !earlier) own[team] = u16(old + __popc(alike));
      __syncwarp();
    }
    u32 start = 0;
    ROLLED for (u32 first = 0; first < teams; first += D::THREADS) {
      const u32 team = first + threadIdx.x;
      const Scan scan = block_scan<D::WARPS>(team < teams ? args.totals()[team] : 0, sums);
      if (team < teams) {
        const u32 chunks = args.counts()[i64(team) * args.chunks + blockIdx.x];
        places[team] = start + scan.before + chunks;
        u32 many = 0;
        UNROLL for (u32 w = 0; w < D::WARPS; ++w) {
          const u32 here = seen[w * teams + team];
          seen[w * teams + team] = u16(many);
          many += here;
        }
      }
      start += scan.all;
    }
    __syncthreads();
    UNROLL for (int e = 0; e < D::EACH; ++e) {
      const u32 k = from + e * LANES, row = D::row(args, given[e], k);
      const u32 team = row & (teams - 1);
      if (row == NONE) continue;
      const u32 at = places[team] + own[team] + before[e];
      store<2>(args.entries + 2 * i64(at), Vec<u32, 2>{row, k});
    }
  }
};

}  // namespace baracuda
#endif
