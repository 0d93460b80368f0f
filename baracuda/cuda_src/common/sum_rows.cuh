// What blocks leave of sums over rows, added up.
#pragma once
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Adds up what each block of `Rows` left of OUT sums of n elements, in their order,
// and rounds once. HOW: as `deliver` reads it.
template <class T, int OUT, int HOW> struct SumRows {
  using A = Acc<T>;
  static constexpr int RESIDENT = 2, ONCE = 8;

  struct Args {
    const A* sums;
    T* out[OUT];
    i64 step[OUT];
    i32 n, blocks;
  };

  static DEVICE void run(const Args& args) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const i64 width = i64(args.n) * OUT, column = i64(blockIdx.x) * 32 + lane;
    A sum = 0;
    for (int first = warp; first < args.blocks && column < width; first += warps * ONCE) {
      A x[ONCE] = {};
      UNROLL for (int i = 0; i < ONCE; ++i) {
        const int line = first + i * warps;
        if (line < args.blocks) x[i] = args.sums[line * width + column];
      }
      UNROLL for (int i = 0; i < ONCE; ++i) sum += x[i];
    }
    using Lines = Several<A, 32 * 33>;
    __shared__ Lines lines;
    lines.at[warp * 33 + lane] = sum;
    __syncthreads();
    // A warp joins the parts of a column, one in each lane.
    for (int c = warp; c < 32; c += warps) {
      const Several<A, 1> own{lane < warps ? lines.at[lane * 33 + c] : A(0)};
      const A total = join_lanes(own, 32, Added<A, 1>{}).at[0];
      const i64 at = i64(blockIdx.x) * 32 + c;
      if (lane == 0 && at < width) {
        UNROLL for (int k = 0; k < OUT; ++k) {
          if (at / args.n == k) {
            deliver<HOW>(k, args.out[k], (at - i64(k) * args.n) * args.step[k], total);
          }
        }
      }
    }
  }
};

}  // namespace baracuda
#endif
