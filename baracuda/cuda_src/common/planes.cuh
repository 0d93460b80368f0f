// Planes schedule: sets of the planes of [n, c, s] have statistics, by which each element is scaled.
//
// A functor F<A> takes `inputs` arrays, x the last. `LineMoments` and `ColumnMoments` leave moments
// of parts, `JoinMoments` joins those of a set in their order and makes four coefficients for each
// plane or channel of them, `MapPlanes` computes the elements.
#pragma once
#include "plane_moments.cuh"
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

// What is known of a set of `count` elements: its mean, and what rounding that left; one over the
// deviation; the means of the gradient and of its product with what is normalised.
template <class A> struct Statistics {
  A mean, shift, inverse, pull, along, count;
};
// Those of a channel, 1 and 0 where they are not given.
template <class A> struct Channel {
  A weight, bias, dmean, dvar;
};

// Of parameters which are there.
enum Given { WEIGHT = 1, BIAS = 2, PULLS = 4 };

// A block for each set: a channel of all n (ACROSS), or some channels of one of the n. Without MOMENTS
// the statistics are given and nothing is summed.
template <class F, class T, int GIVEN, bool ACROSS, bool MOMENTS, bool ADD> struct JoinMoments {
  using A = Acc<T>;
  using State = Several<A, 4>;
  static constexpr bool BACK = F::inputs > 1;
  static constexpr int W = F::given ? 2 : 0, AFTER = W + ((GIVEN & WEIGHT) != 0);
  static constexpr int PARAMETERS = AFTER + ((GIVEN & BIAS) != 0) + 2 * ((GIVEN & PULLS) != 0);
  // Gradients of parameters, or the statistics.
  static constexpr bool OUT = BACK ? (GIVEN & WEIGHT) != 0 : ACROSS && !F::given;
  static constexpr int RESIDENT = 1;

  struct Pointers {
    const A* moments;
    A* coefs;
    T* out[2];  // where a set is all of its channels, else room for what each of the n has
    const T* in[PARAMETERS + (PARAMETERS == 0)];
  };
  struct Args : Pointers, F {
    f64 count;
    i64 units, base, step;  // moments of one kind, from set to set and from line to line
    i64 out_step[2], in_step[PARAMETERS + (PARAMETERS == 0)];
    i32 lines, full, tail;  // of a set; elements of a part and of the last one
    i32 rows_are_parts, channels;
    Extent<u32> parts, groups;
  };

  static DEVICE A given(const Args& args, int k, i64 channel, A otherwise, bool there) {
    return there ? widen(args.in[k][channel * args.in_step[k]]) : otherwise;
  }
  static DEVICE A weight(const Args& args, i64 channel) {
    return given(args, W, channel, A(1), (GIVEN & WEIGHT) != 0);
  }

  struct Part {
    i64 at;
    A count;
    i32 line;
  };
  static DEVICE Part part(const Args& args, u32 set, u32 item) {
    const u32 line = args.parts.divide(item), rest = item - line * args.parts.size;
    const bool last = args.rows_are_parts ? i32(line) == args.lines - 1
                                          : rest == args.parts.size - 1;
    return {set * args.base + line * args.step + rest, A(last ? args.tail : args.full), i32(line)};
  }
  static DEVICE A moment(const Args& args, const Part& p, int k) {
    return args.moments[k * args.units + p.at];
  }

  static DEVICE void run(const Args& args) {
    const F& f = args;
    using Meet = Rooms<State>;
    __shared__ Meet rooms;
    int turn = 0;
    const u32 set = blockIdx.x, items = MOMENTS ? u32(args.lines) * args.parts.size : 0;
    const i64 first = ACROSS ? set : i64(set - args.groups.divide(set) * args.groups.size) *
                                         args.channels;
    const Added<A, 4> join{};
    Statistics<A> known{};
    known.count = A(args.count);
    if constexpr (F::given) {
      known.mean = widen(args.in[0][set * args.in_step[0]]);
      known.inverse = inverse_root(widen(args.in[1][set * args.in_step[1]]) + A(f.eps));
    } else {
      State s{};
      for (u32 i = threadIdx.x; i < items; i += blockDim.x) {
        const Part p = part(args, set, i);
        s.at[0] += fused(p.count, moment(args, p, 0), moment(args, p, 1));
      }
      known.mean = join_block(s, State{}, rooms, turn, join).at[0] / known.count;
    }
    State s{};
    if constexpr (MOMENTS) {
      for (u32 i = threadIdx.x; i < items; i += blockDim.x) {
        const Part p = part(args, set, i);
        const A off = moment(args, p, 0) - known.mean, d = moment(args, p, 1);
        s.at[0] += fused(p.count, off, d);
        s.at[1] += fused(off, fused(p.count, off, 2 * d), moment(args, p, 2));
        if constexpr (BACK) {
          const A w = ACROSS ? A(1) : weight(args, first + p.line), g = moment(args, p, 3);
          s.at[2] = fused(w, g, s.at[2]);
          s.at[3] = fused(w, fused(g, off, moment(args, p, 4)), s.at[3]);
        }
      }
      s = join_block(s, State{}, rooms, turn, join);
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
    if constexpr (OUT && ACROSS) {
      if (threadIdx.x == 0) {
        A one[1] = {BACK ? product : known.mean + known.shift}, two[1] = {BACK ? s.at[2] : s.at[1]};
        put<ADD>(args.out[0] + set * args.out_step[0], one);
        put<ADD>(args.out[1] + set * args.out_step[1], two);
      }
    } else if constexpr (OUT) {
      shares(args, set, known);
    }
    const i32 channels = ACROSS ? 1 : args.channels;
    for (i32 c = threadIdx.x; c < channels; c += blockDim.x) {
      Channel<A> channel{weight(args, first + c)};
      channel.bias = given(args, AFTER, first + c, A(0), (GIVEN & BIAS) != 0);
      channel.dmean = given(args, AFTER, first + c, A(0), (GIVEN & PULLS) != 0);
      channel.dvar = given(args, AFTER + 1, first + c, A(0), (GIVEN & PULLS) != 0);
      const Coefficients<A> k = f.settle(known, channel);
      A* to = args.coefs + (i64(set) * channels + c) * 4;
      to[0] = k.centre, to[1] = k.slope, to[2] = k.along, to[3] = k.offset;
    }
  }

  // What each plane of a set adds to the gradients of its channel's parameters: a warp for each.
  static DEVICE void shares(const Args& args, u32 set, const Statistics<A>& known) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u32 n = args.groups.divide(set), c = (set - n * args.groups.size) * args.channels;
    const i64 all = i64(args.groups.size) * args.channels;
    A* room = reinterpret_cast<A*>(args.out[0]) + n * 2 * all + c;
    for (i32 line = threadIdx.x / 32; line < args.lines; line += warps) {
      Several<A, 2> s{};
      for (u32 i = lane; i < args.parts.size; i += 32) {
        const Part p = part(args, set, line * args.parts.size + i);
        const A off = moment(args, p, 0) - known.mean - known.shift, g = moment(args, p, 3);
        s.at[0] += fused(g, off, moment(args, p, 4));
        s.at[1] += g;
      }
      s = join_lanes(s, 32, Added<A, 2>{});
      if (lane == 0) {
        room[line] = s.at[0] * known.inverse;
        room[all + line] = s.at[1];
      }
    }
  }
};

// The elements of n lines of c planes. A thread has HELD vectors beside each other or, where the
// coefficients are those of all lines, some rounds of as many below each other (DOWN). SAME: a
// vector is within a plane.
// Blocks go backwards: what was read last before is in the L2 still.
template <class F, class T, int HELD, Access ACCESS, bool SAME, bool DOWN, bool ADD>
struct MapPlanes {
  using A = Acc<T>;
  static constexpr int V = 16 / sizeof(T), READS = F::reads, K = READS + 1;
  static constexpr int RESIDENT = ACCESS == VECTORS && SAME ? 4 : 2;

  struct Pointers : Operands<T, READS, 1> {
    const A* coefs;
  };
  struct Args : Pointers {
    i64 rows;  // of coefficients, from line to line
    i32 n, lines, items, rounds;
    Extent<u32> vectors, plane;
    Walk<0, K, i64> walk, inside;
  };

  // Where the elements of a vector are.
  struct Place {
    i64 at[K];
    i64 apart[ACCESS == STEPS ? V : 1][K];

    DEVICE i64 of(int k, int i) const { return at[k] + (ACCESS == STEPS ? apart[i][k] : i); }
  };
  static DEVICE void place(const Args& args, i32 line, i32 e, Place& to) {
    args.walk.template offsets<1>(line < args.lines ? line : 0, to.at);
    if constexpr (ACCESS == STEPS) {
      UNROLL for (int i = 0; i < V; ++i) args.inside.template offsets<1>(e + i, to.apart[i]);
    } else {
      UNROLL for (int k = 0; k < K; ++k) to.at[k] += e;
    }
  }

  static DEVICE void fetch(const Args& args, i32 line, i32 e, const Place& at, Vec<T, V> (&x)[READS]) {
    UNROLL for (int k = 0; k < READS; ++k) {
      x[k] = {};
      if (line >= args.lines) continue;
      if constexpr (ACCESS == VECTORS) {
        x[k] = load<V>(args.in[k] + at.of(k, 0));
      } else {
        UNROLL for (int i = 0; i < V; ++i) {
          if (e + i < args.n) x[k].set(i, args.in[k][at.of(k, i)]);
        }
      }
    }
  }
  template <int ROWS>
  static DEVICE void know(const Args& args, i32 line, i32 e, Coefficients<A> (&c)[ROWS]) {
    UNROLL for (int i = 0; i < ROWS; ++i) {
      const i32 last = args.n - 1, place = e + i < last ? e + i : last;
      c[i] = coefficients(args.coefs, line * args.rows + args.plane.divide(u32(place)));
    }
  }
  template <int ROWS>
  static DEVICE void finish(
      const Args& args, i32 e, const Place& at, const Vec<T, V> (&x)[READS],
      const Coefficients<A> (&c)[ROWS]) {
    A y[V];
    UNROLL for (int i = 0; i < V; ++i) {
      A from[READS];
      UNROLL for (int k = 0; k < READS; ++k) from[k] = widen(x[k], i);
      y[i] = F::finish(from, c[SAME ? 0 : i]);
    }
    if constexpr (ACCESS == VECTORS) {
      put<ADD>(args.out[0] + at.of(K - 1, 0), y);
    } else {
      UNROLL for (int i = 0; i < V; ++i) {
        A one[1] = {y[i]};
        if (e + i < args.n) put<ADD>(args.out[0] + at.of(K - 1, i), one);
      }
    }
  }

  static DEVICE void run(const Args& args) {
    const u32 block = gridDim.x - 1 - blockIdx.x;
    Vec<T, V> x[HELD][READS];
    Place at[HELD];
    Coefficients<A> c[SAME ? 1 : V];
    if constexpr (DOWN) {
      const u32 item = block * blockDim.x + threadIdx.x;
      if (item >= u32(args.items)) return;
      const u32 row = args.vectors.divide(item);
      const i32 e = i32(item - row * args.vectors.size) * V, many = args.rounds * HELD;
      know(args, 0, e, c);
      const i32 first = i32(row) * many, left = args.lines - first;
      const i32 end = left < many ? args.lines : first + many;
      ROLLED for (i32 line = first; line < end; line += HELD) {
        UNROLL for (int h = 0; h < HELD; ++h) {
          place(args, line + h, e, at[h]);
          fetch(args, line + h, e, at[h], x[h]);
        }
        UNROLL for (int h = 0; h < HELD; ++h) {
          if (line + h < args.lines) finish(args, e, at[h], x[h], c);
        }
      }
    } else {
      i32 e[HELD], line[HELD];
      UNROLL for (int h = 0; h < HELD; ++h) {
        const u32 item = (block * HELD + h) * blockDim.x + threadIdx.x;
        const u32 row = args.vectors.divide(item);
        line[h] = item < u32(args.items) ? i32(row) : args.lines;
        e[h] = i32(item - row * args.vectors.size) * V;
        place(args, line[h], e[h], at[h]);
        fetch(args, line[h], e[h], at[h], x[h]);
      }
      UNROLL for (int h = 0; h < HELD; ++h) {
        if (line[h] >= args.lines) break;
        know(args, line[h], e[h], c);
        finish(args, e[h], at[h], x[h], c);
      }
    }
  }
};

}  // namespace baracuda
#endif
