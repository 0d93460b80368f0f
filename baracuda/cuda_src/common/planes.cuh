// Planes schedule: sets of the planes of [n, c, s] have statistics, by which each element is scaled.
//
// A functor F<A> takes `inputs` arrays, x the last. `LineMoments` and `ColumnMoments` leave moments
// of parts, `JoinMoments` joins those of a set in their order and makes four coefficients for each
// plane or channel of them, `MapPlanes` computes the elements.
//
// Moments are about a centre of the part's own: a number near its mean, so that those of data far
// from 0 keep their digits. They are the centre, the sums of deviations from it and of their
// squares, and where there is a gradient g the sums of g and of its products with deviations.
#pragma once
#include "rows.cuh"
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

// Each run of lanes takes a part of a line: HELD vectors of 16 bytes in a thread, which elements,
// alignment does not say.
template <class F, class T, int HELD, Access ACCESS> struct LineMoments {
  using A = Acc<T>;
  static constexpr int V = 16 / sizeof(T), IN = F::inputs, X = IN - 1, M = F::sums;
  // 64 registers, 80 for two arrays.
  static constexpr int RESIDENT = ACCESS != VECTORS ? 1 : IN > 1 ? 3 : 4;

  struct Pointers {
    const T* in[IN];
    A* moments;
  };
  struct Args : Pointers {
    i32 n, units, log_lanes;
    Extent<u32> parts;  // of a line
    Walk<0, IN, i64> walk, inside;
  };

  static DEVICE T element(const Args& args, const i64 (&at)[IN], int k, i32 e) {
    if constexpr (ACCESS != STEPS) return args.in[k][at[k] + e];
    i64 within[IN];
    args.inside.template offsets<1>(e, within);
    return args.in[k][at[k] + within[k]];
  }

  static DEVICE void run(const Args& args) {
    const int lanes = 1 << args.log_lanes, rank = int(threadIdx.x) & (lanes - 1);
    const u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) >> args.log_lanes;
    const bool there = unit < u32(args.units);
    const u32 line = args.parts.divide(there ? unit : 0);
    const i32 size = lanes * HELD * V, part = i32((there ? unit : 0) - line * args.parts.size);
    const i32 first = part * size, end = there ? args.n : 0;
    i64 at[IN];
    args.walk.template offsets<1>(i64(line), at);

    Vec<T, V> held[IN][HELD];
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = first + (rank + h * lanes) * V;
      UNROLL for (int k = 0; k < IN; ++k) {
        held[k][h] = {};
        if constexpr (ACCESS == VECTORS) {
          if (e < end) held[k][h] = load<V>(args.in[k] + at[k] + e);
        } else {
          UNROLL for (int i = 0; i < V; ++i) {
            if (e + i < end) held[k][h].set(i, element(args, at, k, e + i));
          }
        }
      }
    }

    // What is not there is 0.
    Several<A, IN> s{};
    UNROLL for (int h = 0; h < HELD; ++h) {
      UNROLL for (int k = 0; k < IN; ++k) {
        UNROLL for (int i = 0; i < V; ++i) s.at[k] += widen(held[k][h], i);
      }
    }
    s = join_lanes(s, lanes, Added<A, IN>{});
    const i32 left = end - first, count = left < size ? left : size;
    const A centre = s.at[X] / A(count > 0 ? count : 1);

    Several<A, IN + 1> d{};
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = first + (rank + h * lanes) * V;
      UNROLL for (int i = 0; i < V; ++i) {
        if (e + (ACCESS == VECTORS ? 0 : i) < end) {
          const A x = widen(held[X][h], i) - centre;
          d.at[0] += x;
          d.at[1] = fused(x, x, d.at[1]);
          if constexpr (IN > 1) d.at[2] = fused(widen(held[0][h], i), x, d.at[2]);
        }
      }
    }
    d = join_lanes(d, lanes, Added<A, IN + 1>{});
    if (rank || !there) return;
    const A found[5] = {centre, d.at[0], d.at[1], s.at[0], d.at[IN]};
    UNROLL for (int k = 0; k < M; ++k) args.moments[i64(k) * args.units + unit] = found[k];
  }
};

// Columns of a matrix, WIDTH beside each other in a thread, which takes `rows` of the n.
template <class F, class T, int HELD, int WIDTH> struct ColumnMoments {
  using A = Acc<T>;
  static constexpr int IN = F::inputs, X = IN - 1, M = F::sums;
  static constexpr int PART = WIDTH == 1 ? 1 : 16 / sizeof(A);
  static constexpr int RESIDENT = 2;

  struct Pointers {
    const T* in[IN];
    A* moments;
  };
  struct Args : Pointers {
    i64 step[IN];
    i64 columns;
    i32 n, rows, chunks, pad;
    Extent<u32> vectors;
  };

  struct Batch {
    Vec<T, WIDTH> x[IN][HELD];
  };
  static DEVICE void fetch(const Args& args, i64 column, i32 first, i32 end, Batch& batch) {
    UNROLL for (int h = 0; h < HELD; ++h) {
      UNROLL for (int k = 0; k < IN; ++k) {
        batch.x[k][h] = {};
        if (first + h < end) {
          batch.x[k][h] = load<WIDTH>(args.in[k] + (first + h) * args.step[k] + column);
        }
      }
    }
  }

  static DEVICE void run(const Args& args) {
    const u32 item = blockIdx.x * blockDim.x + threadIdx.x, chunk = args.vectors.divide(item);
    if (chunk >= u32(args.chunks)) return;
    const i64 column = i64(item - chunk * args.vectors.size) * WIDTH;
    const i32 first = i32(chunk) * args.rows;
    const i32 end = args.n - first < args.rows ? args.n : first + args.rows;
    A found[M][WIDTH] = {};
    Batch batch;
    fetch(args, column, first, end, batch);
    const A share = A(1) / A(end - first < HELD ? end - first : HELD);
    UNROLL for (int v = 0; v < WIDTH; ++v) {
      A sum = 0;
      UNROLL for (int h = 0; h < HELD; ++h) sum += widen(batch.x[X][h], v);
      found[0][v] = sum * share;
    }
    ROLLED for (i32 e = first;;) {
      UNROLL for (int h = 0; h < HELD; ++h) {
        if (e + h < end) {
          UNROLL for (int v = 0; v < WIDTH; ++v) {
            const A x = widen(batch.x[X][h], v) - found[0][v];
            found[1][v] += x;
            found[2][v] = fused(x, x, found[2][v]);
            if constexpr (M > 3) {
              const A g = widen(batch.x[0][h], v);
              found[3][v] += g;
              found[4][v] = fused(g, x, found[4][v]);
            }
          }
        }
      }
      e += HELD;
      if (e >= end) break;
      fetch(args, column, e, end, batch);
    }
    UNROLL for (int k = 0; k < M; ++k) {
      A* to = args.moments + (i64(k) * args.chunks + chunk) * args.columns + column;
      UNROLL for (int v = 0; v < WIDTH; v += PART) {
        Vec<A, PART> some;
        UNROLL for (int j = 0; j < PART; ++j) some.at[j] = found[k][v + j];
        store<PART>(to + v, some);
      }
    }
  }
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
