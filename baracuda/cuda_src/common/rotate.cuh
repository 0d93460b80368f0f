// Rotation schedule: the angle of a (position, pair) is computed once and used for all rows that
// share the position (heads and batch).
//
// A thread owns one chunk of a row: V elements, V/2 pairs when INTERLEAVED, else two times V
// elements that lie `half` apart. It walks over `rows` rows, DEPTH of them in flight. Where not
// every chunk is an aligned VECTOR of its row, it moves element by element. DIMS is how many
// dimensions the walks over positions and rows have at most, 0 for any number and for rows of which
// a part passes through.
//
// Blocks ask the L2 for what later ones will read: loads that wait behind stores hold up both.
#pragma once
#include "index.cuh"
#include "math.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Frequencies of one launch, in turns as a binary fraction: 64 bits, and 64 more for f64.
constexpr int MOST_PAIRS = 160;

template <class A> struct Frequencies;
template <> struct Frequencies<f32> {
  u64 high[MOST_PAIRS];

  DEVICE void copy(int i, Frequencies& to) const { to.high[i] = high[i]; }
  DEVICE i64 phase(int pair, i64 position) const { return i64(high[pair] * u64(position)); }
};
template <> struct Frequencies<f64> {
  u64 high[MOST_PAIRS], low[MOST_PAIRS];

  DEVICE void copy(int i, Frequencies& to) const {
    to.high[i] = high[i];
    to.low[i] = low[i];
  }
  DEVICE i64 phase(int pair, i64 position) const {
    // Of the magnitude: the upper half of a product is not that of two's complement.
    u64 size = position < 0 ? 0 - u64(position) : u64(position);
    u64 turn = high[pair] * size + multiply_high(low[pair], size);
    return i64(position < 0 ? 0 - turn : turn);
  }
};

// P is the type of the positions, void where they count 0, 1, ... along the walk.
template <class P> struct Positions {
  static DEVICE i64 at(const void* p, i64 offset) { return i64(static_cast<const P*>(p)[offset]); }
};
template <> struct Positions<void> {
  static DEVICE i64 at(const void*, i64 offset) { return offset; }
};

template <
    class F, class T, class P, bool INTERLEAVED, int V, bool VECTOR, int DIMS, int DEPTH, class I,
    bool ADD>
struct Rotate {
  // 4 rows with 64-bit offsets, or added to what is there, take more than 3 blocks leave.
  static constexpr int RESIDENT = sizeof(I) == 8 || ADD ? 2 : 3;
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr bool PLAIN = DIMS != 0, EARLY = PLAIN && VECTOR && !ADD;
  static constexpr int PAIRS = INTERLEAVED ? V / 2 : V, PARTS = INTERLEAVED ? 1 : 2;

  struct Args {
    const T* in;
    T* out;
    const void* positions;
    I places, free, rows, half;  // threads, rows in all and per thread, from a pair's a to its b
    I first, turning, rest, end;  // element of the first pair; chunks that turn, what lies behind
    I inner_in, inner_out;
    I ahead, ahead_rows;  // threads and rows from what a block loads to what it prefetches
    Extent<U> chunks;
    U pad;
    Walk<0, 3, I> place;  // where a row's position comes from: in, out, positions
    Walk<0, 2, I> row;    // the rows that share it: in, out
    Frequencies<A> frequency;
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

  static DEVICE void write(T* p, I inner, int count, A (&x)[V]) {
    if constexpr (VECTOR) {
      put<ADD>(p, x);
    } else {
      UNROLL for (int i = 0; i < V; ++i) {
        A one[1] = {x[i]};
        if (i < count) put<ADD>(p + i * inner, one);
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
      const Args& args, const T* in, I row, I end, int parts, int count, Flight& flight) {
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (row + d >= end) continue;
      offsets(args.row, row + d, flight.at[d]);
      UNROLL for (int p = 0; p < PARTS; ++p) {
        const I offset = flight.at[d][0] + p * args.half * args.inner_in;
        if (PLAIN || p < parts) fetch(in + offset, args.inner_in, count, flight.v[d][p]);
      }
    }
  }

  static DEVICE void prefetch_rows(const Args& args, I item, I row) {
    if (row >= args.free) return;
    if (item >= args.places) {
      item -= args.places;
      row += args.rows;
    }
    if (item >= args.places) return;
    const I place = I(args.chunks.divide(U(item)));
    const I start = args.first + (item - place * I(args.chunks.size)) * V;
    I base[3], at[2];
    offsets(args.place, place, base);
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (row + d >= args.free) continue;
      offsets(args.row, row + d, at);
      UNROLL for (int p = 0; p < PARTS; ++p) {
        prefetch<V>(args.in + base[0] + at[0] + start + p * args.half);
      }
    }
  }

  static DEVICE void run(const Args& args) {
    // Lanes want different frequencies, and the constant bank serves one address at a time.
    __shared__ Frequencies<A> frequency;
    const int pairs = int(args.turning) * PAIRS;
    ROLLED for (int i = int(threadIdx.x); i < pairs; i += int(blockDim.x)) {
      args.frequency.copy(i, frequency);
    }
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    const bool inside = item < args.places;
    const I place = I(args.chunks.divide(U(inside ? item : 0)));
    const I chunk = (inside ? item : 0) - place * I(args.chunks.size);
    const bool turning = PLAIN || chunk < args.turning;
    I base[3];
    offsets(args.place, place, base);
    // Behind the chunks that turn come those that pass through, one vector each.
    const I start = turning ? chunk * V : args.rest + (chunk - args.turning) * V;
    const int parts = turning ? PARTS : 1;
    const int count = turning || start + V <= args.end ? V : int(args.end - start);
    const T* in = args.in + base[0] + (args.first + start) * args.inner_in;
    T* out = args.out + base[1] + (args.first + start) * args.inner_out;
    const I begin = I(blockIdx.y) * args.rows;
    const I end = !inside ? 0 : begin + args.rows < args.free ? begin + args.rows : args.free;
    if constexpr (EARLY) prefetch_rows(args, item + args.ahead, begin + args.ahead_rows);
    Flight flight;
    fetch_rows(args, in, begin, end, parts, count, flight);
    __syncthreads();
    Pair<A> angle[PAIRS];
    if (turning) {
      const i64 position = inside ? Positions<P>::at(args.positions, base[2]) : 0;
      UNROLL for (int i = 0; i < PAIRS; ++i) {
        angle[i] = cos_sin<A>(frequency.phase(int(chunk) * PAIRS + i, position));
      }
    }
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
          const I offset = flight.at[d][1] + p * args.half * args.inner_out;
          if (PLAIN || p < parts) write(out + offset, args.inner_out, count, y[p]);
        }
      }
      row += DEPTH;
      if (row < end) fetch_rows(args, in, row, end, parts, count, flight);
    }
  }
};

}  // namespace baracuda
#endif
