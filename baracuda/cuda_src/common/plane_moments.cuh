// Moments of the parts of planes, for `planes.cuh` and `kept_planes.cuh`.
//
// Moments are about a centre of the part's own: a number near its mean, so that those of data far
// from 0 keep their digits. They are the centre, the sums of deviations from it and of their
// squares, and where there is a gradient g the sums of g and of its products with deviations.
#pragma once
#include "rows.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Moments of a part of which `lanes` lanes of a warp hold HELD vectors each, this one those
// from its `rank` on. Elements from `left` on are not there, and 0; vectors are there or not if
// they are WHOLE.
template <bool WHOLE, class T, int V, int IN, int HELD>
DEVICE void part_moments(
    const Vec<T, V> (&held)[IN][HELD], int rank, int lanes, i32 left, Acc<T> (&found)[5]) {
  using A = Acc<T>;
  constexpr int X = IN - 1;
  Several<A, IN> s{};
  UNROLL for (int h = 0; h < HELD; ++h) {
    UNROLL for (int k = 0; k < IN; ++k) {
      UNROLL for (int i = 0; i < V; ++i) s.at[k] += widen(held[k][h], i);
    }
  }
  s = join_lanes(s, lanes, Added<A, IN>{});
  const i32 size = lanes * HELD * V, count = left < size ? left : size;
  const A centre = s.at[X] / A(count > 0 ? count : 1);

  Several<A, IN + 1> d{};
  UNROLL for (int h = 0; h < HELD; ++h) {
    const i32 e = (rank + h * lanes) * V;
    UNROLL for (int i = 0; i < V; ++i) {
      if (e + (WHOLE ? 0 : i) < left) {
        const A x = widen(held[X][h], i) - centre;
        d.at[0] += x;
        d.at[1] = fused(x, x, d.at[1]);
        if constexpr (IN > 1) d.at[2] = fused(widen(held[0][h], i), x, d.at[2]);
      }
    }
  }
  d = join_lanes(d, lanes, Added<A, IN + 1>{});
  found[0] = centre, found[1] = d.at[0], found[2] = d.at[1], found[3] = s.at[0];
  found[4] = d.at[IN];
}

// Each run of lanes takes a part of a line: HELD vectors of 16 bytes in a thread, which elements,
// alignment does not say.
template <class F, class T, int HELD, Access ACCESS> struct LineMoments {
  using A = Acc<T>;
  static constexpr int V = 16 / sizeof(T), IN = F::inputs, M = F::sums;
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

    A found[5];
    part_moments<ACCESS == VECTORS>(held, rank, lanes, end - first, found);
    if (rank || !there) return;
    UNROLL for (int k = 0; k < M; ++k) args.moments[i64(k) * args.units + unit] = found[k];
  }
};

// Columns of a matrix, WIDTH beside each other in a thread, which takes one of `chunks` of the n
// rows. Threads read rows beside each other at a time: what was read last, the end of the matrix,
// is in the L2 still when its elements are computed.
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
    i32 n, chunks, full, leading;  // rows of a chunk, those from `leading` on have one less
    Extent<u32> vectors;
  };

  struct Batch {
    Vec<T, WIDTH> x[IN][HELD];
  };
  static DEVICE void fetch(const Args& args, i64 column, u32 row, Batch& batch) {
    UNROLL for (int h = 0; h < HELD; ++h, row += args.chunks) {
      UNROLL for (int k = 0; k < IN; ++k) {
        batch.x[k][h] = {};
        if (row < u32(args.n)) batch.x[k][h] = load<WIDTH>(
            args.in[k] + row * args.step[k] + column);
      }
    }
  }

  static DEVICE void run(const Args& args) {
    const u32 item = blockIdx.x * blockDim.x + threadIdx.x, chunk = args.vectors.divide(item);
    if (chunk >= u32(args.chunks)) return;
    const i64 column = i64(item - chunk * args.vectors.size) * WIDTH;
    i32 left = i32(chunk) < args.leading ? args.full : args.full - 1;
    A found[M][WIDTH] = {};
    Batch batch;
    fetch(args, column, chunk, batch);
    const A share = A(1) / A(left < HELD ? left : HELD);
    UNROLL for (int v = 0; v < WIDTH; ++v) {
      A sum = 0;
      UNROLL for (int h = 0; h < HELD; ++h) sum += widen(batch.x[X][h], v);
      found[0][v] = sum * share;
    }
    ROLLED for (u32 row = chunk;;) {
      UNROLL for (int h = 0; h < HELD; ++h) {
        if (h < left) {
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
      row += HELD * args.chunks;
      left -= HELD;
      if (left <= 0) break;
      fetch(args, column, row, batch);
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

}  // namespace baracuda
#endif
