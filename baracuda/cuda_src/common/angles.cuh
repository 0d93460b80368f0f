// Where the angles of a rotation come from: positions and frequencies, or tables of cosines and
// sines. A source has, of one chunk of PAIRS pairs, what is loaded early and what is made late.
#pragma once
#include "index.cuh"
#include "math.cuh"
#include "report.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Frequencies of one launch, in turns as a binary fraction: 64 bits, and 64 more for f64.
template <class A, int MOST> struct Frequencies;
template <int MOST> struct Frequencies<f32, MOST> {
  u64 high[MOST];

  DEVICE void copy(int i, Frequencies& to) const { to.high[i] = high[i]; }
  DEVICE i64 phase(int pair, i64 position) const { return i64(high[pair] * u64(position)); }
};
template <int MOST> struct Frequencies<f64, MOST> {
  u64 high[MOST], low[MOST];

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
  static constexpr bool GIVEN = true;
  static DEVICE i64 at(const void* p, i64 offset) { return i64(static_cast<const P*>(p)[offset]); }
};
template <> struct Positions<void> {
  static constexpr bool GIVEN = false;
  static DEVICE i64 at(const void*, i64 offset) { return offset; }
};

// Angles are positions times frequencies. The walk over places says where a position lies.
template <class A, class P, int MOST> struct Computed {
  static constexpr int OFFSETS = 1;

  struct Pointers {
    const void* positions;
  };
  struct Held {
    Frequencies<A, MOST> frequency;
    f64 factor;  // of cosines and sines
  };
  template <class I> using Numbers = Held;

  // Lanes want different frequencies, and the constant bank serves one address at a time.
  struct Kept {
    Frequencies<A, MOST> frequency;
    A factor;

    DEVICE void fill(const Held& from, int pairs) {
      if (threadIdx.x == 0) factor = A(from.factor);
      ROLLED for (int i = int(threadIdx.x); i < pairs; i += int(blockDim.x)) {
        from.frequency.copy(i, frequency);
      }
    }
    DEVICE void filled() const { __syncthreads(); }
  };

  template <int PAIRS, class I> struct Chunk {
    DEVICE void load_early(const Pointers&, const Numbers<I>&, const I (&)[1], I) {}
    DEVICE void make(
        const Pointers& from, const Kept& kept, const I (&at)[1], I pair, Pair<A> (&angle)[PAIRS]) {
      const i64 position = Positions<P>::at(from.positions, at[0]);
      UNROLL for (int i = 0; i < PAIRS; ++i) {
        const Pair<A> one = cos_sin<A>(kept.frequency.phase(int(pair) + i, position));
        angle[i] = {one.first * kept.factor, one.second * kept.factor};
      }
    }
  };
};

// Angles are read from tables of C, W pairs at a time. Without positions the walk over places says
// where the rows of both tables lie; else where a position lies, and which one it is.
template <class A, class C, class P, int W> struct Tables {
  static constexpr int OFFSETS = 2;

  struct Pointers {
    const C* table[2];
    const void* positions;
  };
  template <class I> struct Numbers {
    Report* listener;
    i64 extent;  // rows of a table
    u32 ticket, pad;
    I first, row[2], inner[2];  // the first pair of the launch; strides of the tables
  };
  struct Kept {
    template <class N> DEVICE void fill(const N&, int) {}
    DEVICE void filled() const {}
  };

  template <int PAIRS, class I> struct Chunk {
    Vec<C, W> v[2][PAIRS / W];

    DEVICE void load_early(
        const Pointers& from, const Numbers<I>& numbers, const I (&at)[2], I pair) {
      I row[2] = {at[0], at[1]};
      if constexpr (Positions<P>::GIVEN) {
        const i64 position = Positions<P>::at(from.positions, at[0]);
        if (!valid(position, numbers.extent, numbers.listener, numbers.ticket, i64(at[1]))) {
          UNROLL for (int k = 0; k < 2; ++k) {
            UNROLL for (int j = 0; j < PAIRS / W; ++j) v[k][j] = Vec<C, W>{};
          }
          return;
        }
        UNROLL for (int k = 0; k < 2; ++k) row[k] = I(position) * numbers.row[k];
      }
      UNROLL for (int k = 0; k < 2; ++k) {
        const C* p = from.table[k] + row[k] + (numbers.first + pair) * numbers.inner[k];
        UNROLL for (int j = 0; j < PAIRS / W; ++j) {
          v[k][j] = load<W>(p + j * W * numbers.inner[k]);
        }
      }
    }
    DEVICE void make(const Pointers&, const Kept&, const I (&)[2], I, Pair<A> (&angle)[PAIRS]) {
      UNROLL for (int i = 0; i < PAIRS; ++i) {
        angle[i] = {widen(v[0][i / W], i % W), widen(v[1][i / W], i % W)};
      }
    }
  };
};

}  // namespace baracuda
#endif
