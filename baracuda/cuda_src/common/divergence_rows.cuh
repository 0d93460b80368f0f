// What divergences of rows of logits share: sums of exponentials, and what becomes of losses.
#pragma once
#include "counts.cuh"
#include "exponentials.cuh"
#include "logit_rows.cuh"
#include "total.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Of rows that lie beside each other, all of them of logits.
template <class T, int WAY, int HELD, bool WIDE, int CLUSTER, int ROWS>
struct DivergenceRows : LogitRows<T, WAY, HELD, WIDE, CLUSTER, ROWS> {
  using Rows = LogitRows<T, WAY, HELD, WIDE, CLUSTER, ROWS>;
  using A = typename Rows::A;
  using Share = typename Rows::Share;
  using Loaded = typename Rows::Loaded;
  static constexpr int V = Rows::V;
  enum : u32 {
    REDUCED = 1, EQUAL_SHARES = 2, WIDE_LOSS = 4, WEIGHTED = 8, WIDE_WEIGHT = 16, GIVEN = 32,
    WIDE_DLOSS = 64
  };

  // Of each row the largest logit and the sum of exponentials beside it.
  using State = Several<A, 2 * ROWS>;
  static DEVICE State start() {
    State s{};
    UNROLL for (int r = 0; r < ROWS; ++r) s.at[2 * r] = Rows::nothing();
    return s;
  }
  static DEVICE void rebase(const Cooled<A>& power, State& s, int of, A most) {
    s.at[of + 1] *= power(s.at[of] - Rows::base(most));
    s.at[of] = most;
  }
  static DEVICE void take(
      const Share& row, const Cooled<A>& power, i32 h, const Loaded& v, State& s) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      rebase(power, s, 2 * r, larger(s.at[2 * r], largest(v.row[r])));
      const A from = Rows::base(s.at[2 * r]);
      UNROLL for (int k = 0; k < HELD; ++k) {
        if (Rows::element(row, h + k) >= row.end) continue;
        A x[V], sum = 0;
        widen(v.row[r][k], x);
        // One thread that adds each to the sum of a whole row would drift.
        UNROLL for (int i = 0; i < V; ++i) sum += power(x[i] - from);
        s.at[2 * r + 1] += sum;
      }
    }
  }
  // Of all lanes: the largest first, so that each has one exponential.
  static DEVICE State across(const Cooled<A>& power, State s, int lanes) {
    UNROLL for (int of = 0; of < 2 * ROWS; of += 2) {
      A most = s.at[of];
      for (int by = lanes / 2; by; by /= 2) most = larger(most, __shfl_xor_sync(~0u, most, by));
      rebase(power, s, of, most);
      for (int by = lanes / 2; by; by /= 2) {
        s.at[of + 1] += __shfl_xor_sync(~0u, s.at[of + 1], by);
      }
    }
    return s;
  }

  // The weight of a row that exists, 1 without weights.
  template <class Args> static DEVICE A weight_of(const Args& args, bool exists, i64 at) {
    if (!exists || !(args.flags & WEIGHTED)) return A(1);
    return widened(args.weight, at, args.flags & WIDE_WEIGHT);
  }
  // What the loss of a row is pulled by.
  template <class Args>
  static DEVICE A pull_of(const Args& args, bool exists, A weight, i64 at) {
    // A weight by the sum: a quotient by a sum that is tiny overflows.
    if (args.parts) weight = weight / all_of(args.shares, args.parts);
    if (args.flags & EQUAL_SHARES) weight = weight / A(args.rows);
    if (exists && args.flags & GIVEN) {
      const bool wide = args.flags & WIDE_DLOSS;
      weight *= widened(args.dloss, args.flags & REDUCED ? 0 : at, wide);
    }
    return weight;
  }
  // The loss of a row, which its first thread has, is delivered or added to those of the block.
  template <class Args>
  static DEVICE void deliver(const Args& args, const Share& row, bool exists, A loss, i64 at) {
    if (!(args.flags & REDUCED)) {
      if (exists && row.rank == 0) deliver_one(loss, args.loss, at, args.flags & WIDE_LOSS);
    } else if constexpr (Rows::BY_BLOCK) {
      if (row.rank == 0) args.sums[blockIdx.x / CLUSTER] = loss;
    } else {
      const A total = block_total(row.rank == 0 ? loss : A(0));
      if (threadIdx.x == 0) args.sums[blockIdx.x] = total;
    }
  }
};

}  // namespace baracuda
#endif
