// The state of each place: what the entries that point there leave, whatever their order.
//
// A state is an integer: how many entries there are, how many are the result, the last of them, or
// the largest of their elements. On chip where the places of a lane fit, else in memory.
#pragma once
#include "common/index.cuh"
#include "common/math.cuh"
#include "common/report.cuh"
#include "common/vec.cuh"
#include "scatter.cuh"
#ifdef __CUDACC__

namespace baracuda {

// A number as an integer of the same order, above 0. NaN is the highest.
template <class A> struct Ordered;
template <> struct Ordered<f32> {
  using Key = u32;

  static DEVICE u32 key(f32 x) {
    const u32 bits = __float_as_uint(x);
    return x != x ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
  }
  static DEVICE f32 number(u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffff : ~key);
  }
};
template <> struct Ordered<f64> {
  using Key = u64;

  static DEVICE u64 key(f64 x) {
    const u64 bits = u64(u32(__double2hiint(x))) << 32 | u32(__double2loint(x));
    return x != x ? ~u64(0) : bits >> 63 ? ~bits : bits | u64(1) << 63;
  }
  static DEVICE f64 number(u64 key) {
    const u64 bits = key >> 63 ? key & ~(u64(1) << 63) : ~key;
    return __hiloint2double(int(bits >> 32), int(bits));
  }
};

// Equal, as NaN is to NaN.
template <class A> DEVICE bool alike(A x, A y) { return x == y || (x != x && y != y); }

// What an entry leaves, by its element, the result that is there, and its number along the axis; 0
// is nothing. States are sums of that where SUMS, else the largest.
struct Counted {
  static constexpr bool TAKES_SRC = false, TAKES_OUT = false, SUMS = true;
  template <class A> using State = u32;
  template <class A> static DEVICE u32 left(A, A, u32) { return 1; }
};
struct Tied {
  static constexpr bool TAKES_SRC = true, TAKES_OUT = true, SUMS = true;
  template <class A> using State = u32;
  template <class A> static DEVICE u32 left(A src, A out, u32) { return alike(src, out); }
};
struct Last {
  static constexpr bool TAKES_SRC = false, TAKES_OUT = false, SUMS = false;
  template <class A> using State = u32;
  template <class A> static DEVICE u32 left(A, A, u32 number) { return number + 1; }
};
// SIGN: 1 for the largest, -1 for the smallest.
template <int SIGN> struct Extreme {
  static constexpr bool TAKES_SRC = true, TAKES_OUT = false, SUMS = false;
  template <class A> using State = typename Ordered<A>::Key;
  template <class A> static DEVICE State<A> left(A src, A, u32) {
    return Ordered<A>::key(A(SIGN) * src);
  }
};

template <class F, class State> DEVICE void leave(State* state, State x) {
  if constexpr (F::SUMS) atomicAdd(state, x);
  else atomicMax(state, x);
}

// In memory, in any layout. A thread has DEPTH entries under way.
template <class T, class P, class F, class I> struct TellPlaces {
  static constexpr int RESIDENT = 4, DEPTH = 4;
  using A = Acc<T>;

  struct Args {
    const P* index;
    const T* src;
    const T* out;
    typename F::template State<A>* state;
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I items, axis_out, axis;  // strides of results and places along the axis
    Walk<0, 5, I> walk;  // index, src; results and places with the axis left out; number along it
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I at[DEPTH][5];
    P index[DEPTH];
    A src[DEPTH] = {}, out[DEPTH] = {};
    // The last entry again where there are fewer: no branch lies between two loads.
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      args.walk.template offsets<1>(lesser(first + d * I(blockDim.x), args.items - 1), at[d]);
      index[d] = args.index[at[d][0]];
      if constexpr (F::TAKES_SRC) src[d] = widen(args.src[at[d][1]]);
    }
    UNROLL for (int d = 0; d < DEPTH && F::TAKES_OUT; ++d) {
      if (!within(index[d], args.extent)) continue;
      out[d] = widen(args.out[at[d][2] + I(index[d]) * args.axis_out]);
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) return;
      if (!valid(index[d], args.extent, args.listener, args.ticket, i64(item))) continue;
      const auto x = F::template left<A>(src[d], out[d], u32(at[d][4]));
      if (x) leave<F>(args.state + at[d][3] + I(index[d]) * args.axis, x);
    }
  }
};

// What states begin with: 0, 1 as what is there counts, or whether that is the result.
enum Start { ZERO, ONES, TIES };

// On chip: a block has some lanes, with the states of all their places. AT_ONCE of its size fit a
// multiprocessor.
template <class T, class P, class F, Start S, int AT_ONCE, class I> struct TellTiles {
  static constexpr int RESIDENT = AT_ONCE, DEPTH = 4;
  using A = Acc<T>;
  using State = typename F::template State<A>;

  struct Args {
    const P* index;
    const T* src;
    const T* out;
    const T* own;  // what is there to begin with
    State* state;
    Report* listener;
    i64 extent;
    u32 ticket, lanes;          // lanes: of a block, a power of 2
    u32 to_lane, to_entry;      // a thread's number shifted by these is its lane, its first entry
    u32 step_bin, step_lane;    // on chip
    I every, length, steps[6];  // lanes in all; entries of one; strides along the axis
    Walk<0, 6, I> walk;         // lanes: of index, src, results, own, places, numbers of entries
  };

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    const u32 together = blockDim.x / args.lanes;
    const u32 lane = threadIdx.x >> args.to_lane & (args.lanes - 1);
    const u32 begin = threadIdx.x >> args.to_entry & (together - 1);
    State* states = reinterpret_cast<State*>(memory);
    const u32 own = lane * args.step_lane;
    const I number = I(blockIdx.x) * I(args.lanes) + I(lane);
    const bool there = number < args.every;
    I at[6];
    args.walk.template offsets<1>(lesser(number, args.every - 1), at);
    for (u32 bin = begin; bin < args.extent; bin += together) {
      State x = S == ONES;
      if constexpr (S == TIES) {
        const T result = args.out[at[2] + I(bin) * args.steps[2]];
        x = alike(widen(args.own[at[3] + I(bin) * args.steps[3]]), widen(result));
      }
      states[own + bin * args.step_bin] = x;
    }
    __syncthreads();
    bool strange = false;
    ROLLED for (I first = begin; first - I(begin) < args.length; first += I(together * DEPTH)) {
      P index[DEPTH];
      A src[DEPTH] = {}, out[DEPTH] = {};
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const I entry = lesser(first + d * I(together), args.length - 1);
        index[d] = args.index[at[0] + entry * args.steps[0]];
        if constexpr (F::TAKES_SRC) src[d] = widen(args.src[at[1] + entry * args.steps[1]]);
      }
      UNROLL for (int d = 0; d < DEPTH && F::TAKES_OUT; ++d) {
        if (!within(index[d], args.extent)) continue;
        out[d] = widen(args.out[at[2] + I(index[d]) * args.steps[2]]);
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const I entry = first + d * I(together);
        const bool is = there && entry < args.length, known = within(index[d], args.extent);
        strange |= is && !known;
        State x = 0;
        if (is && known) x = F::template left<A>(src[d], out[d], u32(entry));
        tell(states, x ? own + u32(index[d]) * args.step_bin : ~0u, x);
      }
    }
    if (strange && args.listener) refuse(args, at, I(begin), I(together));
    __syncthreads();
    for (u32 bin = begin; bin < args.extent && there; bin += together) {
      args.state[at[4] + I(bin) * args.steps[4]] = states[own + bin * args.step_bin];
    }
  }

  // One place for all of a warp: theirs first, or 32 of them would queue for one address.
  static DEVICE void tell(State* states, u32 at, State x) {
    if constexpr (sizeof(State) == 4) {
      if (one_for_all(at)) {
        x = F::SUMS ? __reduce_add_sync(~0u, x) : __reduce_max_sync(~0u, x);
        if (threadIdx.x & 31) x = 0;
      }
    }
    if (x) leave<F>(states + at, x);
  }

  static DEVICE void refuse(const Args& args, const I (&at)[6], I first, I step) {
    ROLLED for (I entry = first; entry < args.length; entry += step) {
      const P i = args.index[at[0] + entry * args.steps[0]];
      valid(i, args.extent, args.listener, args.ticket, i64(at[5] + entry * args.steps[5]));
    }
  }
};

}  // namespace baracuda
#endif
