// Elements joined with what is where an index points, and the gradients. Any layout.
//
// Each place has a state: how many entries point there, or the largest of their elements as an
// integer. No order of threads changes either.
#pragma once
#include "common/index.cuh"
#include "common/math.cuh"
#include "common/report.cuh"
#include "common/vec.cuh"
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

// What an entry does to the state of its place, by its element and the result that is there.
struct Counted {
  static constexpr bool TAKES_SRC = false, TAKES_OUT = false;
  template <class A> using State = u32;
  template <class A> static DEVICE void tell(u32* state, A, A) { atomicAdd(state, 1u); }
};
struct Tied {
  static constexpr bool TAKES_SRC = true, TAKES_OUT = true;
  template <class A> using State = u32;
  template <class A> static DEVICE void tell(u32* state, A src, A out) {
    if (alike(src, out)) atomicAdd(state, 1u);
  }
};
// SIGN: 1 for the largest, -1 for the smallest.
template <int SIGN> struct Extreme {
  static constexpr bool TAKES_SRC = true, TAKES_OUT = false;
  template <class A> using State = typename Ordered<A>::Key;
  template <class A> static DEVICE void tell(State<A>* state, A src, A) {
    atomicMax(state, Ordered<A>::key(A(SIGN) * src));
  }
};

template <class T, class P, class F, class I> struct TellPlaces {
  static constexpr int RESIDENT = 4;
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
    Walk<0, 4, I> walk;       // index, src, results and places with the axis left out
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    I at[4];
    args.walk.template offsets<1>(item, at);
    const P i = args.index[at[0]];
    if (!valid(i, args.extent, args.listener, args.ticket, i64(item))) return;
    A src = 0, out = 0;
    if constexpr (F::TAKES_SRC) src = widen(args.src[at[1]]);
    if constexpr (F::TAKES_OUT) out = widen(args.out[at[2] + I(i) * args.axis_out]);
    F::template tell<A>(args.state + at[3] + I(i) * args.axis, src, out);
  }
};

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

// Places: F of what is there.
template <class T, class U, class O, class F, bool ADD, class I> struct GivePlaces {
  static constexpr int RESIDENT = 4;
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
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    I at[5];
    args.walk.template offsets<1>(item, at);
    typename F::template State<A> state = 0;
    A own = 0, out = 0;
    if constexpr (F::TAKES_STATE) state = args.state[at[3]];
    if constexpr (F::TAKES_TIE) own = widen(args.own[at[1]]), out = widen(args.out[at[2]]);
    A x[1] = {F::template of<A>(widen(args.from[at[0]]), own, out, state)};
    put<ADD>(args.to + at[4], x);
  }
};

// Entries: F of the cotangent of their place and of their element; 0 for one out of range.
template <class T, class P, class F, class I, bool ADD> struct GiveEntries {
  static constexpr int RESIDENT = 4;
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
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    I at[6];
    args.walk.template offsets<1>(item, at);
    const P i = args.index[at[0]];
    A x[1] = {};
    if (valid(i, args.extent, args.listener, args.ticket, i64(item))) {
      A own = 0, out = 0;
      u32 state = 0;
      if constexpr (F::TAKES_TIE) {
        own = widen(args.src[at[1]]), out = widen(args.out[at[4] + I(i) * args.axis_out]);
      }
      if constexpr (F::TAKES_STATE) state = args.state[at[5] + I(i) * args.axis];
      x[0] = F::template of<A>(widen(args.dout[at[3] + I(i) * args.axis_dout]), own, out, state);
    }
    put<ADD>(args.to + at[2], x);
  }
};

}  // namespace baracuda
#endif
