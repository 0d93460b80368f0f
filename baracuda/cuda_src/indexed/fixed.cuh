// Scatter in memory whose sums no order changes: 64-bit integers, at a scale of each bin's own.
//
// Three kernels: the keys of all bins (the magnitude of the largest element), the sums at the scale
// that a key gives, and their way to the target. Any layout, as ScatterAtomic.
#pragma once
#include "common/exact_integers.cuh"
#include "scatter.cuh"
#ifdef __CUDACC__

namespace baracuda {

// 63 - bits bits of each word are left for carries; two words of float64, one of float32.
template <class A> struct Wide;
template <> struct Wide<f32> {
  static constexpr int WORDS = 1;

  static DEVICE int exponent(u32 key, int bits) { return bits + 126 - greater(int(key >> 23), 1); }

  static DEVICE void split(f32 x, u32 key, int bits, i64 (&word)[WORDS]) {
    word[0] = __double2ll_rn(f64(x) * __hiloint2double((1023 + exponent(key, bits)) << 20, 0));
  }

  static DEVICE f32 join(const i64 (&word)[WORDS], u32 key, int bits) {
    return f32(f64(f32(word[0])) * __hiloint2double((1023 - exponent(key, bits)) << 20, 0));
  }
};
template <> struct Wide<f64> {
  static constexpr int WORDS = 2;

  // 2^n in two factors: one alone would leave the range.
  static DEVICE f64 scaled(f64 x, int n) {
    const int half = n / 2;
    return x * __hiloint2double((1023 + half) << 20, 0) *
           __hiloint2double((1023 + n - half) << 20, 0);
  }
  static DEVICE int exponent(u32 key, int bits) { return bits + 1022 - greater(int(key >> 20), 1); }

  static DEVICE void split(f64 x, u32 key, int bits, i64 (&word)[WORDS]) {
    x = scaled(x, exponent(key, bits));
    word[0] = __double2ll_rn(x);
    word[1] = __double2ll_rn(scaled(x - f64(word[0]), bits));
  }

  static DEVICE f64 join(const i64 (&word)[WORDS], u32 key, int bits) {
    return scaled(f64(word[0]) + scaled(f64(word[1]), -bits), -exponent(key, bits));
  }
};

// Whether the first of both passes, which finds the keys, or the second, which adds.
template <class T, class P, bool KEYS, int DEPTH, class I> struct ScatterFixed {
  using A = Acc<T>;
  static constexpr int WORDS = Wide<A>::WORDS;
  static constexpr int RESIDENT = 4;

  struct Args {
    const T* values;
    const P* index;
    u32* keys;
    u64* sums;
    Report* listener;
    i64 extent, size;
    u32 ticket, bits;
    I items, axis;       // axis: the bins' stride along it
    Walk<0, 3, I> walk;  // values, index, bins with the axis left out
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      I at[3], bin = -1;
      A x = 0;
      if (item < args.items) {
        args.walk.template offsets<1>(item, at);
        const P index = args.index[at[1]];
        if (valid(index, args.extent, args.listener, args.ticket, i64(item))) {
          bin = at[2] + I(index) * args.axis;
          x = widen(args.values[at[0]]);
        }
      }
      const bool together = one_for_all(bin), speaks = !together || (threadIdx.x & 31) == 0;
      if constexpr (KEYS) {
        u32 key = Bits<A>::key(x);
        if (together) key = __reduce_max_sync(~0u, key);
        if (bin >= 0 && speaks) atomicMax(args.keys + bin, key);
      } else {
        const u32 key = bin < 0 ? 0 : args.keys[bin];
        const bool finite = key < Bits<A>::NOT_FINITE;
        i64 word[WORDS] = {};
        if (bin >= 0 && finite) Wide<A>::split(x, key, int(args.bits), word);
        UNROLL for (int w = 0; w < WORDS; ++w) {
          if (together) word[w] = warp_sum(word[w]);
          if (bin >= 0 && finite && speaks) {
            atomicAdd(args.sums + w * args.size + bin, u64(word[w]));
          }
        }
        if (!finite && flags(x)) {
          atomicOr(reinterpret_cast<u32*>(args.sums + bin), flags(x));
        }
      }
    }
  }
};

template <class T, class I, bool ADD> struct SettleFixed {
  using A = Acc<T>;
  static constexpr int WORDS = Wide<A>::WORDS;
  static constexpr int RESIDENT = 4;

  struct Args {
    const u32* keys;
    const u64* sums;
    T* target;
    i64 size;
    u32 bits, pad;
    I items, last;
    Walk<0, 2, I> walk;  // bins, target
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    I at[2];
    args.walk.template offsets<1>(item, at);
    const u32 key = args.keys[at[0]];
    A x[1] = {0};
    if (key >= Bits<A>::NOT_FINITE) {
      x[0] = not_finite<A>(u32(args.sums[at[0]]));
    } else if (key) {
      i64 word[WORDS];
      UNROLL for (int w = 0; w < WORDS; ++w) word[w] = i64(args.sums[w * args.size + at[0]]);
      x[0] = Wide<A>::join(word, key, int(args.bits));
    }
    put<ADD>(args.target + at[1], x);
  }
};

}  // namespace baracuda
#endif
