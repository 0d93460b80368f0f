// Sets of planes: what their moments say of them, and what becomes of their elements.
#pragma once
#include "index.cuh"
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Elements are slope * g + along * (x - centre) + offset.
template <class A> struct Coefficients {
  A centre, slope, along, offset;
};
template <class A> DEVICE Coefficients<A> coefficients(const A* p, i64 row) {
  constexpr int PART = 16 / sizeof(A);
  Several<A, 4> c;
  UNROLL for (int i = 0; i < 4; i += PART) {
    const Vec<A, PART> v = load<PART>(p + row * 4 + i);
    UNROLL for (int j = 0; j < PART; ++j) c.at[i + j] = v.at[j];
  }
  return {c.at[0], c.at[1], c.at[2], c.at[3]};
}
template <class A> DEVICE void keep(A* p, i64 row, const Coefficients<A>& c) {
  A* to = p + row * 4;
  to[0] = c.centre, to[1] = c.slope, to[2] = c.along, to[3] = c.offset;
}

// What is known of a set of `count` elements: its mean, and what rounding that left; one over the
// deviation; the means of the gradient and of its product with what is normalised.
template <class A> struct Statistics {
  A mean, shift, inverse, pull, along, count;
};
// With what is found of a set that is a channel: the mean and the variance, or the gradients of the
// weight and of the bias.
template <class A> struct Joined {
  Statistics<A> known;
  A found[2];
};
// Those of a channel, 1 and 0 where they are not given.
template <class A> struct Channel {
  A weight, bias, dmean, dvar;
};

// Moments of a part of a set, how many elements they are of, and in which line.
template <class A> struct Part {
  const A* at;
  A count;
  i32 line;
};

// Of parameters which are there.
enum Given { WEIGHT = 1, BIAS = 2, PULLS = 4 };

// A set is a channel of all n (ACROSS), or some channels of one of the n, and a block joins its
// moments, or those of BESIDE sets: every so many threads are of one. `Parts` says how many parts
// there are, and which.
// What is found is left as HOW says to `deliver`.
// Parameters, and their gradients, are of C.
template <class F, class T, int GIVEN, bool ACROSS, int HOW, int BESIDE = 1, class C = T>
struct PlaneSets {
  using A = Acc<T>;
  using State = Several<A, 4>;
  using Meet = Rooms<State, BESIDE>;
  static constexpr bool BACK = F::inputs > 1;
  static constexpr int W = F::given ? 2 : 0, AFTER = W + ((GIVEN & WEIGHT) != 0);
  static constexpr int PARAMETERS = AFTER + ((GIVEN & BIAS) != 0) + 2 * ((GIVEN & PULLS) != 0);
  // Gradients of parameters, or the statistics.
  static constexpr bool LEAVES = BACK ? (GIVEN & WEIGHT) != 0 : ACROSS && !F::given;

  struct Pointers {
    // Where a set is all of its channels, else room for what each of the n has.
    typename Either<BACK, C, T>::type* found[2];
    const C* parameter[PARAMETERS + (PARAMETERS == 0)];
  };
  struct Numbers {
    f64 count;
    i64 found_step[2], parameter_step[PARAMETERS + (PARAMETERS == 0)];
    i32 channels;  // of a set
    Extent<u32> groups;
  };

  template <class P, class Args>
  static DEVICE A given(const Args& args, int k, i64 channel, A otherwise, bool there) {
    const P* p = reinterpret_cast<const P*>(args.parameter[k]);
    return there ? widen(p[channel * args.parameter_step[k]]) : otherwise;
  }
  template <class Args> static DEVICE A weight(const Args& args, i64 channel) {
    return given<C>(args, W, channel, A(1), (GIVEN & WEIGHT) != 0);
  }
  // The first channel of a set.
  template <class Args> static DEVICE i64 first(const Args& args, u32 set) {
    if constexpr (ACROSS) return set;
    return i64(set - args.groups.divide(set) * args.groups.size) * args.channels;
  }

  // What is known of a set whose statistics are given.
  template <class Args> static DEVICE Statistics<A> told(const Args& args, u32 set) {
    const F& f = args;
    Statistics<A> known{};
    known.count = A(args.count);
    known.mean = widen(args.parameter[0][set * args.parameter_step[0]]);
    const A variance = widen(args.parameter[1][set * args.parameter_step[1]]);
    known.inverse = inverse_root(variance + A(f.eps));
    return known;
  }

  template <bool MOMENTS, class Args, class Parts>
  static DEVICE Joined<A> join(
      const Args& args, const Parts& parts, u32 set, Meet& rooms, int& turn) {
    const F& f = args;
    const Added<A, 4> add{};
    const i64 channel = first(args, set);
    const u32 items = parts.number();
    Statistics<A> known{};
    if constexpr (F::given) {
      known = told(args, set);
    } else {
      known.count = A(args.count);
      State s{};
      for (u32 i = threadIdx.x / BESIDE; i < items; i += blockDim.x / BESIDE) {
        const Part<A> p = parts.part(i);
        s.at[0] += fused(p.count, parts.moment(p, 0), parts.moment(p, 1));
      }
      known.mean = join_beside<BESIDE>(s, State{}, rooms, turn, add).at[0] / known.count;
    }
    State s{};
    if constexpr (MOMENTS) {
      for (u32 i = threadIdx.x / BESIDE; i < items; i += blockDim.x / BESIDE) {
        const Part<A> p = parts.part(i);
        const A off = parts.moment(p, 0) - known.mean, d = parts.moment(p, 1);
        s.at[0] += fused(p.count, off, d);
        s.at[1] += fused(off, fused(p.count, off, 2 * d), parts.moment(p, 2));
        if constexpr (BACK) {
          const A w = ACROSS ? A(1) : weight(args, channel + p.line), g = parts.moment(p, 3);
          s.at[2] = fused(w, g, s.at[2]);
          s.at[3] = fused(w, fused(g, off, parts.moment(p, 4)), s.at[3]);
        }
      }
      s = join_beside<BESIDE>(s, State{}, rooms, turn, add);
    }
    if constexpr (!F::given) {
      known.shift = s.at[0] / known.count;
      const A variance = fused(-known.shift, known.shift, s.at[1] / known.count);
      // Not a comparison that a NaN would pass.
      s.at[1] = variance < 0 ? A(0) : variance;
      known.inverse = inverse_root(s.at[1] + A(f.eps));
    }
    const A w = ACROSS ? weight(args, set) : A(1);
    const A product = fused(-known.shift, s.at[2], s.at[3]) * known.inverse;
    known.pull = w * s.at[2] / known.count;
    known.along = w * product / known.count;
    if constexpr (BACK) return {known, {product, s.at[2]}};
    return {known, {known.mean + known.shift, s.at[1]}};
  }

  // What is found of a channel.
  template <class Args>
  static DEVICE void leave(const Args& args, const Joined<A>& of, u32 set) {
    if (threadIdx.x >= BESIDE) return;
    UNROLL for (int k = 0; k < 2; ++k) {
      deliver<HOW>(k, args.found[k], set * args.found_step[k], of.found[k]);
    }
  }

  // What each plane of a set adds to the gradients of its channel's parameters: a warp for each,
  // those of this block from the plane `from` on.
  template <class Args, class Parts>
  static DEVICE void shares(
      const Args& args, const Parts& parts, const Statistics<A>& known, u32 set, u32 from,
      u32 step) {
    const u32 lane = threadIdx.x % 32, n = args.groups.divide(set);
    const i64 all = i64(args.groups.size) * args.channels;
    A* room = reinterpret_cast<A*>(args.found[0]) + n * 2 * all + first(args, set);
    for (u32 line = from + threadIdx.x / 32; line < u32(args.channels); line += step) {
      Several<A, 2> s{};
      for (u32 i = lane; i < args.parts.size; i += 32) {
        const Part<A> p = parts.part(line * args.parts.size + i);
        const A off = parts.moment(p, 0) - known.mean - known.shift, g = parts.moment(p, 3);
        s.at[0] += fused(g, off, parts.moment(p, 4));
        s.at[1] += g;
      }
      s = join_lanes(s, 32, Added<A, 2>{});
      if (lane == 0) {
        room[line] = s.at[0] * known.inverse;
        room[all + line] = s.at[1];
      }
    }
  }

  // A channel of a set.
  template <class Args> static DEVICE Channel<A> channel_of(const Args& args, u32 set, i32 line) {
    const i64 c = first(args, set) + line;
    Channel<A> channel{weight(args, c)};
    channel.bias = given<C>(args, AFTER, c, A(0), (GIVEN & BIAS) != 0);
    channel.dmean = given<T>(args, AFTER, c, A(0), (GIVEN & PULLS) != 0);
    channel.dvar = given<T>(args, AFTER + 1, c, A(0), (GIVEN & PULLS) != 0);
    return channel;
  }
};

}  // namespace baracuda
#endif
