// Stochastic rounding: up or down at random, so that the mean is the number that is rounded.
#pragma once
#include "math.cuh"

namespace baracuda {

template <class T> constexpr bool HALF = false;
template <> constexpr bool HALF<f16> = true;

// x as T would hold it. It goes away from zero where 16 bits of the word, added to what T has no
// room for, carry into T's last place. What is not finite stays, and so do types of more bits.
template <class T> HD f64 rounded(f64 x, u32) { return x; }
template <class T> HD f32 rounded(f32 x, u32 word) {
  constexpr bool LONG = sizeof(T) > 2, SHORT = !LONG && HALF<T>;
  const u32 bits = u32(bits_of(x)), size = bits & 0x7fffffffu, sign = bits ^ size;
  if (LONG || size >= 0x7f800000u) return x;
  const u32 by = word >> 16;
  if (!SHORT) return of_bits(i32(sign | ((size + by) & 0xffff0000u)));
  // The numbers of float16 below 2^-14 are multiples of 2^-24.
  const f32 steps = of_bits(i32(size)) * 16777216.0f + f32(by) * 0x1p-16f;
  const f32 small = f32(i32(steps)) * 0x1p-24f;
  const u32 up = size < 0x38800000u ? u32(bits_of(small)) : (size + (by >> 3)) & 0xffffe000u;
  return of_bits(i32(sign | up));
}

}  // namespace baracuda
