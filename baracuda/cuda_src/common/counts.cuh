// How many rows count: a mean over these is known to be one before any row is read.
#pragma once
#include "index.cuh"
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// What rows count in all, by where each has its entry; each block leaves the sum of its run.
template <class Args, class N, class F>
DEVICE void total_of_rows(const Args& args, N* sums, const F& counts_for) {
  const i64 first = i64(blockIdx.x) * args.run, end = first + args.run;
  N sum = 0;
  for (i64 row = first + threadIdx.x; row < end && row < args.rows; row += blockDim.x) {
    i64 at[1];
    args.walk.template offsets<1>(row, at);
    sum += counts_for(at[0]);
  }
  sum = block_total(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
// What targets count that are classes and not ignored.
template <class Args, class N, class F>
DEVICE void total_of_targets(const Args& args, N* sums, const F& counts_for) {
  total_of_rows(args, sums, [&](i64 at) {
    const i64 target = entry_of(args.target, at, args.wide);
    const bool counts = target != args.ignored && u64(target) < u64(args.classes);
    return counts ? counts_for(target) : N(0);
  });
}

// How many targets are classes and not ignored; each block leaves the number of its run.
struct Counts {
  static constexpr int RESIDENT = 1;

  struct Args {
    const void* target;
    i32* counts;
    i64 rows, run, classes, ignored;
    u32 wide, pad;
    Walk<0, 1, i64> walk;
  };

  static DEVICE void run(const Args& args) {
    total_of_targets(args, args.counts, [](i64) { return 1; });
  }
};

// What the weights of their classes are in all; each block leaves the sum of its run.
template <class T> struct Shares {
  using A = Acc<T>;
  static constexpr int RESIDENT = 1;

  struct Args {
    const void* target;
    A* sums;
    const T* weight;
    i64 rows, run, classes, ignored, step;
    u32 wide, wide_weight;
    Walk<0, 1, i64> walk;
  };

  static DEVICE void run(const Args& args) {
    total_of_targets(args, args.sums, [&](i64 target) {
      return widened(args.weight, target * args.step, args.wide_weight);
    });
  }
};

// What the weights of rows are in all; each block leaves the sum of its run.
template <class T> struct RowShares {
  using A = Acc<T>;
  static constexpr int RESIDENT = 1;

  struct Args {
    const T* weight;
    A* sums;
    i64 rows, run;
    u32 wide, pad;
    Walk<0, 1, i64> walk;
  };

  static DEVICE void run(const Args& args) {
    total_of_rows(
        args, args.sums, [&](i64 at) { return widened(args.weight, at, args.wide); });
  }
};

}  // namespace baracuda
#endif
