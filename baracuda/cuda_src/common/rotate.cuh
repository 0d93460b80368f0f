// Rotation schedule: the angle of a (position, pair) is made once and used for all rows that share
// the position (heads and batch).
//
// A thread owns one chunk of a row: V elements, V/2 pairs when INTERLEAVED, else two times V
// elements that lie `half` apart. It walks over `rows` rows, DEPTH of them in flight. Where not
// every chunk is an aligned VECTOR of its row, it moves element by element. DIMS is how many
// dimensions the walks over positions and rows have at most, 0 for any number and for rows of which
// a part passes through. S is the source of the angles, common/angles.cuh.
//
// SIDES arrays turn in one launch, as q and k do. They share positions, not rows: the blocks of the
// second one lie behind those of the first. ADD has a bit for each that is added to.
//
// Blocks ask the L2 for what later ones will read: loads that wait behind stores hold up both.
#pragma once
#include "angles.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    class F, class T, class S, int SIDES, bool INTERLEAVED, int V, bool VECTOR, int DIMS, int DEPTH,
    class I, int ADD>
struct Rotate {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  using Kept = typename S::Kept;
  static constexpr bool PLAIN = DIMS != 0, EARLY = PLAIN && VECTOR && !ADD;
  static constexpr int PAIRS = INTERLEAVED ? V / 2 : V, PARTS = INTERLEAVED ? 1 : 2;
  static constexpr int PLACED = 2 * SIDES + S::OFFSETS, EVERY = (1 << SIDES) - 1;
  // 4 rows with 64-bit offsets, or added to what is there, take more than 3 blocks leave; so do
  // halves of 16 bits whose many offsets come from walks of any depth.
  static constexpr bool LARGE = sizeof(I) == 8 || ADD || (!PLAIN && PAIRS == 8 && PLACED > 3);
  static constexpr int RESIDENT = LARGE ? 2 : 3;

  struct Array {
    const T* in;
    T* out;
  };
  struct Args {
    Array array[SIDES];
    typename S::Pointers from;
    I places, rows, half;  // threads, rows of a thread, from a pair's a to its b
    I first, turning, rest, end;  // element of the first pair; chunks that turn, what lies behind
    I ahead, ahead_rows;  // threads and rows from what a block loads to what it prefetches
    I blocks;             // of rows of the first array
    I free[SIDES], inner[SIDES][2];  // rows in all; strides within a row: in, out
    Extent<U> chunks;
    U pad;
    Walk<0, PLACED, I> place;  // where an angle comes from: in and out of each, the source's
    Walk<0, 2, I> row[SIDES];  // the rows that share it: in, out
    typename S::template Numbers<I> source;
  };

  template <int K> static DEVICE void offsets(const Walk<0, K, I>& walk, I item, I (&at)[K]) {
    if constexpr (PLAIN) {
      // The same without the loop: an angle has to pay for what leads to it, too.
      const I outer = DIMS == 1 ? 0 : I(walk.extent[0].divide(U(item)));
      const I inner = item - outer * I(walk.extent[0].size);
      UNROLL for (int k = 0; k < K; ++k) {
        at[k] = inner * walk.stride[0][k] + outer * walk.stride[1][k];
      }
    } else {
      walk.template offsets<1>(item, at);
    }
  }

  static DEVICE void fetch(const T* p, I inner, int count, Vec<T, V>& v) {
    if constexpr (VECTOR) {
      v = load<V>(p);
    } else {
      UNROLL for (int i = 0; i < V; ++i) {
        if (i < count) v.set(i, p[i * inner]);
      }
    }
  }

  template <int N> static DEVICE void deliver(T* p, int side, A (&x)[N]) {
    if constexpr (ADD == 0 || ADD == EVERY) {
      put<ADD != 0>(p, x);
    } else if (ADD >> side & 1) {
      put<true>(p, x);
    } else {
      put<false>(p, x);
    }
  }

  static DEVICE void write(T* p, int side, I inner, int count, A (&x)[V]) {
    if constexpr (VECTOR) {
      deliver(p, side, x);
    } else {
      UNROLL for (int i = 0; i < V; ++i) {
        A one[1] = {x[i]};
        if (i < count) deliver(p + i * inner, side, one);
      }
    }
  }

  static DEVICE void turn(
      const Vec<T, V> (&v)[PARTS], const Pair<A> (&angle)[PAIRS], A (&y)[PARTS][V]) {
    A x[PARTS][V];
    UNROLL for (int p = 0; p < PARTS; ++p) widen(v[p], x[p]);
    UNROLL for (int i = 0; i < PAIRS; ++i) {
      if constexpr (INTERLEAVED) {
        F::apply(x[0][2 * i], x[0][2 * i + 1], angle[i], y[0][2 * i], y[0][2 * i + 1]);
      } else {
        F::apply(x[0][i], x[1][i], angle[i], y[0][i], y[1][i]);
      }
    }
  }

  // Rows from `row` on, as many as are in flight at once.
  struct Flight {
    Vec<T, V> v[DEPTH][PARTS];
    I at[DEPTH][2];
  };

  static DEVICE void fetch_rows(
      const Args& args, int side, const T* in, I row, I end, int parts, int count,
      Flight& flight) {
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (row + d >= end) continue;
      offsets(args.row[side], row + d, flight.at[d]);
      UNROLL for (int p = 0; p < PARTS; ++p) {
        const I offset = flight.at[d][0] + p * args.half * args.inner[side][0];
        if (PLAIN || p < parts) fetch(in + offset, args.inner[side][0], count, flight.v[d][p]);
      }
    }
  }

  static DEVICE void prefetch_rows(const Args& args, int side, I item, I row) {
    if (row >= args.free[side]) return;
    if (item >= args.places) {
      item -= args.places;
      row += args.rows;
    }
    if (item >= args.places) return;
    const I place = I(args.chunks.divide(U(item)));
    const I start = args.first + (item - place * I(args.chunks.size)) * V;
    I base[PLACED], at[2];
    offsets(args.place, place, base);
    const T* in = args.array[side].in + (side ? base[2 * SIDES - 2] : base[0]);
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (row + d >= args.free[side]) continue;
      offsets(args.row[side], row + d, at);
      UNROLL for (int p = 0; p < PARTS; ++p) prefetch<V>(in + at[0] + start + p * args.half);
    }
  }

  static DEVICE void run(const Args& args) {
    __shared__ Kept kept;
    kept.fill(args.source, int(args.turning) * PAIRS);
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    const bool inside = item < args.places;
    const I place = I(args.chunks.divide(U(inside ? item : 0)));
    const I chunk = (inside ? item : 0) - place * I(args.chunks.size);
    const bool turning = PLAIN || chunk < args.turning;
    const int side = SIDES > 1 && I(blockIdx.y) >= args.blocks;
    I base[PLACED], at[S::OFFSETS];
    offsets(args.place, place, base);
    UNROLL for (int k = 0; k < S::OFFSETS; ++k) at[k] = base[2 * SIDES + k];
    // Behind the chunks that turn come those that pass through, one vector each.
    const I start = turning ? chunk * V : args.rest + (chunk - args.turning) * V;
    const int parts = turning ? PARTS : 1;
    const int count = turning || start + V <= args.end ? V : int(args.end - start);
    const I here = args.first + start;
    const T* in = args.array[side].in + (side ? base[2 * SIDES - 2] : base[0]);
    T* out = args.array[side].out + (side ? base[2 * SIDES - 1] : base[1]);
    in += here * args.inner[side][0];
    out += here * args.inner[side][1];
    const I begin = (I(blockIdx.y) - (side ? args.blocks : 0)) * args.rows;
    const I free = args.free[side];
    const I end = !inside ? 0 : begin + args.rows < free ? begin + args.rows : free;
    if constexpr (EARLY) prefetch_rows(args, side, item + args.ahead, begin + args.ahead_rows);
    typename S::template Chunk<PAIRS, I> source;
    if (turning && inside) source.load_early(args.from, args.source, at, chunk * PAIRS);
    Flight flight;
    fetch_rows(args, side, in, begin, end, parts, count, flight);
    kept.filled();
    Pair<A> angle[PAIRS];
    if (turning && inside) source.make(args.from, kept, at, chunk * PAIRS, angle);
    ROLLED for (I row = begin; row < end;) {
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        if (row + d >= end) continue;
        A y[PARTS][V];
        if (turning) {
          turn(flight.v[d], angle, y);
        } else {
          UNROLL for (int p = 0; p < PARTS; ++p) widen(flight.v[d][p], y[p]);
        }
        UNROLL for (int p = 0; p < PARTS; ++p) {
          const I offset = flight.at[d][1] + p * args.half * args.inner[side][1];
          if (PLAIN || p < parts) write(out + offset, side, args.inner[side][1], count, y[p]);
        }
      }
      row += DEPTH;
      if (row < end) fetch_rows(args, side, in, row, end, parts, count, flight);
    }
  }
};

}  // namespace baracuda
#endif
