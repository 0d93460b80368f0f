// Elements joined with what is where an index points, and the gradients. Any layout.
//
// Each place has a state, which tell.cuh makes. No order of threads changes it.
#pragma once
#include "tell.cuh"
#ifdef __CUDACC__

namespace baracuda {

// States to begin with, where what is there counts: 1, or whether it is the result.
template <class T, bool TIES, class I> struct StartCounts {
  static constexpr int RESIDENT = 4;

  struct Args {
    const T* x;
    const T* out;
    u32* state;
    I items;
    Walk<0, 3, I> walk;  // x, results, places
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    I at[3];
    args.walk.template offsets<1>(item, at);
    u32 count = 1;
    if constexpr (TIES) count = alike(widen(args.x[at[0]]), widen(args.out[at[1]]));
    args.state[at[2]] = count;
  }
};

// What becomes of an element: `from` is x, a sum or a cotangent, of the place; `own` an element
// that may be the result `out`.
struct Passed {
  static constexpr bool TAKES_TIE = false, TAKES_STATE = false;
  template <class A> using State = u32;
  template <class A> static DEVICE A of(A from, A, A, u32) { return from; }
};
struct Held {
  static constexpr bool TAKES_TIE = false, TAKES_STATE = true;
  template <class A> using State = u32;
  template <class A> static DEVICE A of(A from, A, A, u32 many) { return many ? A(0) : from; }
};
struct Split {
  static constexpr bool TAKES_TIE = false, TAKES_STATE = true;
  template <class A> using State = u32;
  template <class A> static DEVICE A of(A from, A, A, u32 many) { return from / A(many + !many); }
};
struct SplitTies {
  static constexpr bool TAKES_TIE = true, TAKES_STATE = true;
  template <class A> using State = u32;
  template <class A> static DEVICE A of(A from, A own, A out, u32 many) {
    return alike(own, out) ? from / A(many + !many) : A(0);
  }
};
template <int SIGN, bool SELF> struct Reached {
  static constexpr bool TAKES_TIE = false, TAKES_STATE = true;
  template <class A> using State = typename Ordered<A>::Key;
  template <class A> static DEVICE A of(A from, A, A, State<A> state) {
    if (!state || (SELF && from != from)) return from;
    const A x = A(SIGN) * Ordered<A>::number(state);
    return SELF && A(SIGN) * from > A(SIGN) * x ? from : x;
  }
};

// Places: F of what is there. A thread has DEPTH of them under way, as in GiveEntries.
template <class T, class U, class O, class F, bool ADD, class I> struct GivePlaces {
  static constexpr int RESIDENT = 4, DEPTH = 4;
  using A = Acc<T>;

  struct Args {
    const U* from;
    const T* own;
    const T* out;
    const typename F::template State<A>* state;
    O* to;
    I items;
    Walk<0, 5, I> walk;  // from, own, results, places, to
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I at[DEPTH][5];
    A from[DEPTH], own[DEPTH] = {}, out[DEPTH] = {};
    typename F::template State<A> state[DEPTH] = {};
    // The last place again where there are fewer: no branch lies between two loads.
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      args.walk.template offsets<1>(lesser(first + d * I(blockDim.x), args.items - 1), at[d]);
      from[d] = widen(args.from[at[d][0]]);
      if constexpr (F::TAKES_STATE) state[d] = args.state[at[d][3]];
      if constexpr (F::TAKES_TIE) own[d] = widen(args.own[at[d][1]]);
      if constexpr (F::TAKES_TIE) out[d] = widen(args.out[at[d][2]]);
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * I(blockDim.x) >= args.items) return;
      A x[1] = {F::template of<A>(from[d], own[d], out[d], state[d])};
      put<ADD>(args.to + at[d][4], x);
    }
  }
};

// Entries: F of the cotangent of their place and of their element; 0 for one out of range.
template <class T, class P, class F, class I, bool ADD> struct GiveEntries {
  // Offsets of 64 bits take twice the registers.
  static constexpr int RESIDENT = sizeof(I) == 8 ? 2 : 4, DEPTH = 4;
  using A = Acc<T>;

  struct Args {
    const P* index;
    const T* dout;
    const T* src;
    const T* out;
    const u32* state;
    T* to;
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I items, axis_dout, axis_out, axis;  // strides along the axis
    Walk<0, 6, I> walk;  // index, src, to; dout, results and places with the axis left out
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    I at[DEPTH][6];
    P index[DEPTH];
    A dout[DEPTH] = {}, own[DEPTH] = {}, out[DEPTH] = {};
    u32 state[DEPTH] = {};
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      args.walk.template offsets<1>(lesser(first + d * I(blockDim.x), args.items - 1), at[d]);
      index[d] = args.index[at[d][0]];
      if constexpr (F::TAKES_TIE) own[d] = widen(args.src[at[d][1]]);
    }
    UNROLL for (int d = 0; d < DEPTH && F::TAKES_TIE; ++d) {
      if (!within(index[d], args.extent)) continue;
      out[d] = widen(args.out[at[d][4] + I(index[d]) * args.axis_out]);
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      // Few entries are ties, and nothing else is known of the others.
      const bool tie = !F::TAKES_TIE || alike(own[d], out[d]);
      if (!within(index[d], args.extent) || !tie) continue;
      dout[d] = widen(args.dout[at[d][3] + I(index[d]) * args.axis_dout]);
      if constexpr (F::TAKES_STATE) state[d] = args.state[at[d][5] + I(index[d]) * args.axis];
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item >= args.items) return;
      A x[1] = {};
      if (valid(index[d], args.extent, args.listener, args.ticket, i64(item))) {
        x[0] = F::template of<A>(dout[d], own[d], out[d], state[d]);
      }
      put<ADD>(args.to + at[d][2], x);
    }
  }
};

}  // namespace baracuda
#endif
