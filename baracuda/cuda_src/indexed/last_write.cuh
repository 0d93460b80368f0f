// Scatter in which the last of several elements for one place stays, and its gradient.
//
// First the number of the last entry that points to each place is found, from 1 on: as a maximum of
// integers, which no order changes. Then each place takes its element. Any layout.
#pragma once
#include "tell.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <bool ADD, class T> DEVICE void hand_out(T* p, T x) {
  if constexpr (ADD) {
    Acc<T> sum[1] = {widen(x)};
    put<true>(p, sum);
  } else {
    *p = x;
  }
}

// Each place: its last element, or what it begins with. HELD places get 0 instead, in a gradient. A
// thread has DEPTH places under way, in GiveLast entries.
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
    I at[DEPTH][4];
    u32 last[DEPTH];
    T x[DEPTH];
    // The last place again where there are fewer: no branch lies between two loads.
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = lesser(first + d * I(blockDim.x), args.items - 1);
      args.walk.template offsets<1>(item, at[d]);
      last[d] = args.last[at[d][1]];
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      x[d] = T{};
      const T* own = args.from + at[d][0];
      if (!HELD && last[d]) own = args.src + at[d][2] + I(last[d] - 1) * args.axis;
      if (!HELD || !last[d]) x[d] = *own;
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * I(blockDim.x) < args.items) hand_out<ADD>(args.out + at[d][3], x[d]);
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
    I at[DEPTH][5];
    P index[DEPTH];
    u32 last[DEPTH];
    T x[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = lesser(first + d * I(blockDim.x), args.items - 1);
      args.walk.template offsets<1>(item, at[d]);
      index[d] = args.index[at[d][0]];
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const bool inside = within(index[d], args.extent);
      last[d] = inside ? args.last[at[d][1] + I(index[d]) * args.axis] : 0;
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const bool own = last[d] == u32(at[d][3]) + 1;
      x[d] = own ? args.dout[at[d][2] + I(index[d]) * args.axis_dout] : T{};
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * I(blockDim.x) < args.items) hand_out<ADD>(args.out + at[d][4], x[d]);
    }
  }
};

}  // namespace baracuda
#endif
