// How many rows count: a mean over these is known to be one before any row is read.
#pragma once
#include "index.cuh"
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// What targets count that are classes and not ignored; each block leaves the sum of its run.
template <class Args, class N, class F>
DEVICE void total_of_targets(const Args& args, N* sums, const F& counts_for) {
  const i64 first = i64(blockIdx.x) * args.run, end = first + args.run;
  N sum = 0;
  for (i64 row = first + threadIdx.x; row < end && row < args.rows; row += blockDim.x) {
    i64 at[1];
    args.walk.template offsets<1>(row, at);
    const i64 target = entry_of(args.target, at[0], args.wide);
    if (target != args.ignored && u64(target) < u64(args.classes)) sum += counts_for(target);
  }
  sum = block_total(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
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

}  // namespace baracuda
#endif
