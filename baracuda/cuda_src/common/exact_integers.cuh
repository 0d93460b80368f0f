// Sums that no order changes: integers.
//
// An element is cut into digits of `bits` bits at some scale, and digits are added as 32-bit
// integers, which shared memory does natively and five times as fast as floats. 31 - bits bits are
// left for carries: fewer than 2^(31 - bits) elements add up without one. A sum is rounded once.
//
// Exact: one scale for all bins, and so many digits that nothing is lost; `takes` says whether that
// is true of elements between two magnitudes. Digits: a scale for each bin, that of its key, the
// magnitude of its largest element; what falls off is less than rounding a float sum once costs.
#pragma once
#include "types.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Bits of a float as they count here. A key is the magnitude of a value, of a float64 its upper
// half, with a last bit for all that is below; keys are in the order of magnitudes, 0 is that of 0.
template <class A> struct Bits;
template <> struct Bits<f32> {
  static constexpr u32 NOT_FINITE = 0x7f800000, ONE = 1 << 23, BIAS = 127, SMALL = 64 * ONE;

  static DEVICE u32 key(f32 x) { return __float_as_uint(x) & 0x7fffffff; }
  // The power of 2 with this biased exponent, shifted as in a key.
  static DEVICE f32 power(u32 exponent) { return __uint_as_float(exponent); }
};
template <> struct Bits<f64> {
  static constexpr u32 NOT_FINITE = 0x7ff00000, ONE = 1 << 20, BIAS = 1023, SMALL = 128 * ONE;

  static DEVICE u32 key(f64 x) {
    return (u32(__double2hiint(x)) & 0x7fffffff) | (__double2loint(x) != 0);
  }
  static DEVICE f64 power(u32 exponent) { return __hiloint2double(exponent, 0); }
};

// The factor that brings elements up to `key`, of at least the exponent 1, below 2^bits; its
// inverse for sums counted in units of the second digit.
template <class A> DEVICE A factor(u32 key, int bits) {
  using B = Bits<A>;
  return B::power((2 * B::BIAS - 1 + bits) * B::ONE - (key & B::NOT_FINITE));
}
template <class A> DEVICE A inverse(u32 key, int bits) {
  return Bits<A>::power((key & Bits<A>::NOT_FINITE) + (1 - 2 * bits) * Bits<A>::ONE);
}

// The digits of x, below 2^bits in magnitude. Adding 1.5 times the power of 2 that has the weight 1
// in its last place rounds to an integer and leaves that in the low bits.
template <int WORDS> DEVICE void cut_up(f32 x, int bits, u32 (&digit)[WORDS]) {
  const f32 big = 12582912.0f;
  UNROLL for (int w = 0; w < WORDS; ++w) {
    const f32 here = x + big;
    digit[w] = __float_as_uint(here) - __float_as_uint(big);
    x = (x - (here - big)) * __uint_as_float(u32(127 + bits) << 23);
  }
}
template <int WORDS> DEVICE void cut_up(f64 x, int bits, u32 (&digit)[WORDS]) {
  const f64 big = 6755399441055744.0;
  UNROLL for (int w = 0; w < WORDS; ++w) {
    const f64 here = x + big;
    digit[w] = u32(__double2loint(here));
    x = (x - (here - big)) * __hiloint2double((1023 + bits) << 20, 0);
  }
}

DEVICE i64 two_digits(u32 high, u32 low, int bits) { return (i64(i32(high)) << bits) + i32(low); }

// One scale for all bins. MANTISSA bits of an element count.
template <class T> struct Exact;
template <class T, int N, int M> struct ExactHalf {
  static constexpr int WORDS = N, MANTISSA = M;
  // Several sums, each rounded once. Digits of up to 24 bits are floats already; longer ones are
  // rare, so that one look at all of them is enough.
  template <int V> static DEVICE void join(const u32 (&digit)[V][N], int bits, f32 (&sum)[V]) {
    constexpr u32 HALF = 1 << 23;
    u32 all = 0;
    UNROLL for (int v = 0; v < V; ++v) all |= (digit[v][0] + HALF) | (digit[v][1] + HALF);
    const f32 weight = __uint_as_float(u32(127 + bits) << 23);
    UNROLL for (int v = 0; v < V; ++v) {
      sum[v] = f32(i32(digit[v][0])) * weight + f32(i32(digit[v][1]));
    }
    if (all >> 24 == 0) return;
    UNROLL for (int v = 0; v < V; ++v) {
      sum[v] = f32(two_digits(digit[v][0], digit[v][1], bits));
    }
  }
};
template <> struct Exact<bf16> : ExactHalf<bf16, 2, 8> {};
template <> struct Exact<f16> : ExactHalf<f16, 2, 11> {};
template <> struct Exact<f32> {
  static constexpr int WORDS = 3, MANTISSA = 24;
  // Rounded once: of what is far below the last bit it only matters whether it is 0.
  template <int V> static DEVICE void join(const u32 (&digit)[V][WORDS], int bits, f32 (&sum)[V]) {
    const f64 unit = __hiloint2double((1023 - bits) << 20, 0);
    UNROLL for (int v = 0; v < V; ++v) {
      const u32(&d)[WORDS] = digit[v];
      const i64 high = two_digits(d[0], d[1], bits) + (i32(d[2]) >> bits);
      const u32 low = d[2] & ((1u << bits) - 1);
      const bool far = u64(high + (1ll << 35)) >> 36;
      sum[v] = far ? f32(high | (low != 0)) : f32(f64(high) + f64(low) * unit);
    }
  }
};
template <> struct Exact<f64> {
  static constexpr int WORDS = 5, MANTISSA = 53;
  template <int V> static DEVICE void join(const u32 (&digit)[V][WORDS], int bits, f64 (&sum)[V]) {
    const f64 unit = __hiloint2double((1023 - bits) << 20, 0);
    UNROLL for (int v = 0; v < V; ++v) {
      const u32(&d)[WORDS] = digit[v];
      const f64 low = f64(two_digits(d[2], d[3], bits)) + f64(i32(d[4])) * unit;
      sum[v] = f64(two_digits(d[0], d[1], bits)) + low * unit * unit;
    }
  }
};

// Whether elements between the keys `least` (of those other than 0) and `most` keep all bits at a
// scale.
template <class T> DEVICE bool takes(u32 least, u32 most, u32 scale, int bits) {
  using B = Bits<Acc<T>>;
  if (most == 0 && sizeof(T) < 8) return true;
  const int range = int(scale / B::ONE) - greater(int(least / B::ONE), 1);
  return most >= B::SMALL && most < B::NOT_FINITE && most / B::ONE <= scale / B::ONE &&
         range + Exact<T>::MANTISSA <= bits * Exact<T>::WORDS;
}

// A scale for each bin, for any element.
template <class A> struct Digits;
template <> struct Digits<f32> {
  static constexpr int WORDS = 2;

  static DEVICE f32 join(const u32 (&digit)[WORDS], u32 key, int bits) {
    // In float64, exact, so that a subnormal result is rounded once too.
    const int exponent = greater(int(key >> 23), 1);
    const f64 unit = __hiloint2double((897 + exponent - 2 * bits) << 20, 0);
    return f32(f64(two_digits(digit[0], digit[1], bits)) * unit);
  }
};
template <> struct Digits<f64> {
  static constexpr int WORDS = 4;

  static DEVICE f64 join(const u32 (&digit)[WORDS], u32 key, int bits) {
    const f64 unit = __hiloint2double((1023 - 2 * bits) << 20, 0);
    const f64 sum = f64(two_digits(digit[0], digit[1], bits)) +
                    f64(two_digits(digit[2], digit[3], bits)) * unit;
    const u32 small = Bits<f64>::SMALL;
    if (key >= small) return sum * inverse<f64>(key, bits);
    key = u32(greater(int(key), 1 << 20)) + small;
    return sum * inverse<f64>(key, bits) * Bits<f64>::power((1023 - 128) << 20);
  }
};
template <class A> DEVICE void split(A x, u32 key, int bits, u32 (&digit)[Digits<A>::WORDS]) {
  using B = Bits<A>;
  if (key < B::SMALL) {
    // In two factors: one alone would leave the range.
    x *= B::power(B::SMALL + B::BIAS * B::ONE);
    key = u32(greater(int(key), int(B::ONE))) + B::SMALL;
  }
  cut_up(x * factor<A>(key, bits), bits, digit);
}

// What infinities and NaNs leave in the first digit of a bin, and what that makes of its sum.
constexpr u32 PLUS = 1, MINUS = 2, UNDEFINED = 4;
template <class A> DEVICE u32 flags(A x) {
  if (Bits<A>::key(x) < Bits<A>::NOT_FINITE) return 0;
  return x != x ? UNDEFINED : x > 0 ? PLUS : MINUS;
}
template <class A> DEVICE A not_finite(u32 flags) {
  const f32 infinity = __int_as_float(0x7f800000);
  return flags == PLUS ? A(infinity) : flags == MINUS ? -A(infinity) : A(infinity - infinity);
}

}  // namespace baracuda
#endif
