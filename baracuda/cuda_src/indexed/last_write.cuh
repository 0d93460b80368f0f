// Scatter in which the last of several elements for one place stays, and its gradient.
//
// First the number of the last entry that points to each place is found, from 1 on: as a maximum of
// integers, which no order changes. Then each place takes its element. Any layout.
#pragma once
#include "common/index.cuh"
#include "common/report.cuh"
#include "common/vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <bool ADD, class T> DEVICE void leave(T* p, T x) {
  if constexpr (ADD) {
    Acc<T> sum[1] = {widen(x)};
    put<true>(p, sum);
  } else {
    *p = x;
  }
}

// A thread has DEPTH entries or places under way.
template <class P, int DEPTH, class I> struct FindLast {
  static constexpr int RESIDENT = 4;

  struct Args {
    const P* index;
    u32* last;
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I items, axis;       // axis: the stride of places along it
    Walk<0, 3, I> walk;  // index, places with the axis left out, number along the axis
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I at[DEPTH][3];
    P index[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) break;
      args.walk.template offsets<1>(item, at[d]);
      index[d] = args.index[at[d][0]];
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) return;
      if (!valid(index[d], args.extent, args.listener, args.ticket, i64(item))) continue;
      atomicMax(args.last + at[d][1] + I(index[d]) * args.axis, u32(at[d][2]) + 1);
    }
  }
};

// Each place: its last element, or what it begins with. HELD places get 0 instead, in a gradient.
template <class T, int DEPTH, class I, bool HELD, bool ADD> struct TakeLast {
  static constexpr int RESIDENT = 4;

  struct Args {
    const T* from;
    const u32* last;
    const T* src;
    T* out;
    I items, axis;       // axis: the stride of src along it
    Walk<0, 4, I> walk;  // from, last, src with the axis left out, out
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I to[DEPTH];
    T x[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) break;
      I at[4];
      args.walk.template offsets<1>(item, at);
      to[d] = at[3];
      const u32 last = args.last[at[1]];
      x[d] = T{};
      if (!last) x[d] = args.from[at[0]];
      else if (!HELD) x[d] = args.src[at[2] + I(last - 1) * args.axis];
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * I(blockDim.x) < args.items) leave<ADD>(args.out + to[d], x[d]);
    }
  }
};

// The gradient of each entry: that of its place, where it was the last.
template <class T, class P, int DEPTH, class I, bool ADD> struct GiveLast {
  static constexpr int RESIDENT = 4;

  struct Args {
    const P* index;
    const u32* last;
    const T* dout;
    T* out;
    i64 extent;
    I items, axis, axis_dout, pad;  // strides of places, and of dout, along the axis
    Walk<0, 5, I> walk;  // index, places and dout with the axis left out, number, out
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I to[DEPTH];
    T x[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) break;
      I at[5];
      args.walk.template offsets<1>(item, at);
      to[d] = at[4];
      const P i = args.index[at[0]];
      x[d] = T{};
      if (u64(i64(i)) >= u64(args.extent)) continue;
      const u32 last = args.last[at[1] + I(i) * args.axis];
      if (last == u32(at[3]) + 1) x[d] = args.dout[at[2] + I(i) * args.axis_dout];
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * I(blockDim.x) < args.items) leave<ADD>(args.out + to[d], x[d]);
    }
  }
};

}  // namespace baracuda
#endif
