// Formulas that several ops share, in the accumulate type. They compile for the host as well.
#pragma once
#include "types.cuh"

namespace baracuda {

// 1/x for x in the middle of the range, to one unit in the last place.
HD f64 reciprocal(f64 x) { return 1.0 / x; }
HD f32 reciprocal(f32 x) {
#ifdef __CUDA_ARCH__
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

HD i32 bits_of(f32 x) {
#ifdef __CUDA_ARCH__
  return __float_as_int(x);
#else
  i32 bits;
  memcpy(&bits, &x, 4);
  return bits;
#endif
}
HD f32 of_bits(i32 bits) {
#ifdef __CUDA_ARCH__
  return __int_as_float(bits);
#else
  f32 x;
  memcpy(&x, &bits, 4);
  return x;
#endif
}
// A whole number, carried where there are only reals: its bits, or its value.
HD i32 carried(f32 x) { return bits_of(x); }
HD i32 carried(f64 x) { return i32(x); }
HD void carry(i32 i, f32& x) { x = of_bits(i); }
HD void carry(i32 i, f64& x) { x = i; }

// x, computed here and not where it is first used: ahead of a loop, say.
HD f32 at_once(f32 x) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+f"(x));
#endif
  return x;
}
HD f64 at_once(f64 x) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+d"(x));
#endif
  return x;
}

HD f32 fused(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
HD f64 fused(f64 a, f64 b, f64 c) { return fma(a, b, c); }
HD f32 magnitude(f32 x) { return fabsf(x); }
HD f64 magnitude(f64 x) { return fabs(x); }
HD f32 infinity() { return of_bits(0x7f800000); }
HD f32 logarithm(f32 x) { return logf(x); }
HD f64 logarithm(f64 x) { return log(x); }
// 2^x; 0 where the result would be subnormal.
HD f32 exponential2(f32 x) {
#ifdef __CUDA_ARCH__
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < -126 ? 0.0f : exp2f(x);
#endif
}
HD f64 exponential2(f64 x) { return exp2(x); }
// e^x to a few units in the last place of e^x and of x; 0 where it would be subnormal.
constexpr f32 LOG2_E = 1.44269504f;
HD f32 quick_exponential(f32 x) { return exponential2(x * LOG2_E); }
HD f64 quick_exponential(f64 x) { return exp(x); }
// e^x; QUICK as above for x up to 60, but down to the least subnormal.
template <bool QUICK = false> HD f32 exponential(f32 x) {
  return QUICK ? exponential2(fused(x, 1.44269504f, 24.0f)) * 5.9604645e-08f : expf(x);
}
template <bool QUICK = false> HD f64 exponential(f64 x) { return exp(x); }
// log2 x of normal numbers, to 2^-22 absolute below 2 in size and relative above; of smaller ones
// that of 0.
HD f32 logarithm2(f32 x) {
#ifdef __CUDA_ARCH__
  f32 y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return log2f(fabsf(x) < 1.17549435e-38f ? 0.0f : x);
#endif
}
HD f64 logarithm2(f64 x) { return log2(x); }
HD f32 hyperbolic_tangent(f32 x) { return tanhf(x); }
HD f64 hyperbolic_tangent(f64 x) { return tanh(x); }
// The larger of two, NaN if one of them is.
template <class A> HD A larger(A a, A b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(A) == 4) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
  }
#endif
  return b > a || b != b ? b : a;
}
// x/y for |x| <= y and y above 0, to one unit in the last place.
HD f64 ratio(f64 x, f64 y) { return x / y; }
HD f32 ratio(f32 x, f32 y) {
#ifdef __CUDA_ARCH__
  if (y - y != 0) return x - x;
  // A power of two, which costs no rounding, brings y to between 2 and 4, subnormals far up.
  const i32 exponent = __float_as_int(y) & 0x7f800000, least = 0x00800000;
  const f32 unit = __int_as_float(0x7f800000 - (exponent > least ? exponent : least));
  x *= unit;
  y *= unit;
  const f32 inverse = reciprocal(y), quotient = x * inverse;
  return fmaf(fmaf(-quotient, y, x), inverse, quotient);
#else
  return x / y;
#endif
}
// x/y to two units in the last place, without the branch of a division; 0 for y above 2^126.
HD f64 quick_ratio(f64 x, f64 y) { return x / y; }
HD f32 quick_ratio(f32 x, f32 y) {
#ifdef __CUDA_ARCH__
  asm("div.approx.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
#else
  return x / y;
#endif
}
// Roots of 0 and of normal numbers, to one unit in the last place: an estimate and a Newton step,
// without the branches of sqrtf and cbrtf for numbers that do not come.
HD f32 root2(f32 x) {
#ifdef __CUDA_ARCH__
  f32 r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaxf(x, 1.17549435e-38f)));
  const f32 y = x * r;
  return fmaf(fmaf(-y, y, x), 0.5f * r, y);
#else
  return sqrtf(x);
#endif
}
HD f32 root3(f32 x) {
#ifdef __CUDA_ARCH__
  const f32 r = exponential2(logarithm2(fmaxf(x, 1.17549435e-38f)) * -0.33333333333f);
  const f32 square = r * r, y = x * square;
  return fmaf(fmaf(-y * y, y, x), square * 0.33333333333f, y);
#else
  return cbrtf(x);
#endif
}
HD f64 root2(f64 x) { return sqrt(x); }
// The same to 2^-22.
HD f32 coarse_root2(f32 x) {
#ifdef __CUDA_ARCH__
  f32 y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return sqrtf(x);
#endif
}
HD f64 root3(f64 x) { return cbrt(x); }
HD f32 square_root(f32 x) { return sqrtf(x); }
HD f64 square_root(f64 x) { return sqrt(x); }
// 1/sqrt(x), rounded as two operations.
HD f32 inverse_root(f32 x) { return 1.0f / sqrtf(x); }
HD f64 inverse_root(f64 x) { return 1.0 / sqrt(x); }
// x^(p + rest) for x above 0, where p is rounded and `rest` what that left: to two units in the
// last place, and 0 where it would be subnormal.
HD f32 power(f32 x, f32 p, f32 rest = 0) {
  // x is 2^e m with m from sqrt(1/2) to sqrt(2).
  const bool small = x < 1.17549435e-38f;
  const i32 bits = bits_of(small ? x * 16777216.0f : x), scale = (bits - 0x3f3504f3) & 0xff800000;
  const f32 m = of_bits(bits - scale), e = fused(f32(scale), 1.1920929e-07f, small ? -24.0f : 0.0f);
  // log2 m is 2/ln(2) atanh((m - 1)/(m + 1)), kept as a sum of two, for p may multiply its error.
  const f32 f = m - 1, inverse = reciprocal(m + 1), s = f * inverse, square = s * s;
  const f32 s_rest = fused(-s, f, fused(s, -2.0f, f)) * inverse;
  const f32 series = fused(fused(0.43095803f, square, 0.57675403f), square, 0.96179825f);
  const f32 first = s * 2.88539f, most = fused(s * square, series, first);
  const f32 log = bits < 0x7f800000 ? e + most : x;
  f32 log_rest = fused(s_rest, 2.88539f, fused(s, 3.851926e-08f, fused(s, 2.88539f, -first)));
  log_rest += fused(s * square, series, first - most) + (most - (log - e));
  const f32 t = p * log, t_rest = fused(rest, log, fused(p, log_rest, fused(p, log, -t)));
  const f32 y = exponential2(t);
  return magnitude(t) < 128 ? fused(y, t_rest * 0.6931472f, y) : y;
}
// Not inlined: the many copies that unrolled loops would have take most of a second to compile.
APART f64 power(f64 x, f64 p) { return pow(x, p); }
HD f64 power(f64 x, f64 p, f64 rest) {
  const f64 y = power(x, p);
  return fused(y, rest * log(x), y);
}
// Nor are these, several at a time, lest the calls cost as much as the work.
template <class A, int N> struct Several {
  A at[N];
};
template <int N> APART Several<f32, N> powers(Several<f32, N> x, f32 p, f32 rest) {
  UNROLL for (int i = 0; i < N; ++i) x.at[i] = power(x.at[i], p, rest);
  return x;
}
template <int N> HD Several<f64, N> powers(Several<f64, N> x, f64 p, f64 rest) {
  UNROLL for (int i = 0; i < N; ++i) x.at[i] =
      rest == 0 ? power(x.at[i], p) : power(x.at[i], p, rest);
  return x;
}

// A function of the gate and what it is at the negative gate, or its slope.
template <class A> struct Pair {
  A first, second;
};

// The logistic function at b and at -b: neither cancels, nothing overflows.
template <bool QUICK = false, class A> HD Pair<A> sigmoid(A b) {
  A e = exponential<QUICK>(-magnitude(b));
  A large = reciprocal(1 + e), small = e * large;
  return b >= 0 ? Pair<A>{large, small} : Pair<A>{small, large};
}

// (exp(x) - 1 - x)/x^2 for x from -1/2 to 0, by a polynomial.
HD f32 exponential_curve(f32 x) {
  f32 p = fused(0.0011216348502784967f, x, 0.008187386207282543f);
  p = fused(p, x, 0.041629090905189514f);
  p = fused(p, x, 0.16666224598884583f);
  return fused(p, x, 0.4999998211860657f);
}
// exp(x) - 1; in f32 near 0 by the polynomial, which has a relative error of 2^-29 below 0. Both
// ways are gone, for a branch costs more.
HD f64 exponential_less_one(f64 x) { return expm1(x); }
HD f32 exponential_less_one(f32 x) {
  const f32 near = fused(exponential_curve(x) * x, x, x), far = quick_exponential(x) - 1;
  return magnitude(x) < 0.5f ? near : far;
}
// exp(x) - 1 - x for x between -2 and 2. In f32 a series for x/4; of the excess e of y that of 2 y
// is (y + e)^2 + 2 e, a sum of what is no less than 0.
HD f64 exponential_excess(f64 x) { return expm1(x) - x; }
HD f32 exponential_excess(f32 x) {
  const f32 y = 0.25f * x;
  f32 p = fused(1.9841270e-04f, y, 1.3888889e-03f);
  p = fused(p, y, 8.3333333e-03f);
  p = fused(p, y, 0.041666667f);
  p = fused(p, y, 0.16666667f);
  f32 e = fused(p, y, 0.5f) * y * y;
  e = fused(y + e, y + e, 2 * e);
  return fused(2 * y + e, 2 * y + e, 2 * e);
}

// log(1 + x) for x from -1/2 to 1. In f32 2 artanh(s) with s = x/(2 + x), as x less a correction in
// which the roundings of s hardly count; the series has a relative error of 2^-27, QUICK 2^-22.
template <bool QUICK = false> HD f64 logarithm_1p(f64 x) { return log1p(x); }
template <bool QUICK = false> HD f32 logarithm_1p(f32 x) {
  const f32 s = x * reciprocal(2 + x), square = s * s;
  f32 p = QUICK ? 0.339832603931427f : fused(0.2800678610801697f, square, 0.2800302505493164f);
  p = fused(p, square, QUICK ? 0.3963601887226105f : 0.40021437406539917f);
  p = fused(p, square, QUICK ? 0.6667348146438599f : 0.666664183139801f);
  return fused(-s, fused(-square, p, x), x);
}

// log x to 2^-22, without the branches of logf; of 0 and, in f32, of subnormals that of the least
// number, so that 0 times it is 0.
template <bool QUICK = false> HD f64 bounded_logarithm(f64 x) {
  return larger(log(x), -744.44007192138127);
}
template <bool QUICK = false> HD f32 bounded_logarithm(f32 x) {
  const f32 off = x - 1, near = logarithm_1p<QUICK>(off);
  const f32 far = larger(logarithm2(x), -126.0f) * 0.69314718f;
  return magnitude(off) < 0.5f ? near : far;
}

// log(1 + exp(b)) for b up to 0, to which far below 0 the relative accuracy is kept.
template <bool QUICK = false, class A> HD A logarithm_1p_exponential(A b) {
  return logarithm_1p<QUICK>(QUICK ? quick_exponential(b) : exponential(b));
}
// The same for any b: nothing overflows.
template <bool QUICK = false, class A> HD A softplus(A b) {
  return (b > 0 ? b : A(0)) + logarithm_1p_exponential<QUICK>(-magnitude(b));
}

// With u = (z - k)/(z + k) the upper tail of the normal distribution is exp(-z*z/2) P(u)/(z + k)
// (Shepherd and Laframboise, 1981). P is fitted in relative error on 0 <= z <= end, to 2^-26 and
// 2^-56; behind `end` the exponential is 0. Highest power first.
template <class A> struct Tail;
template <> struct Tail<f32> {
  static constexpr int terms = 9;
  static constexpr f32 end = 13.5f, k = 3.75f;
  static HD f32 coefficient(int i) {
    constexpr f32 c[terms] = {
        0.0004434094380107209f, 0.0005095359321674157f, -0.0041690686089867375f,
        0.001200094479841714f,  0.037492527671998045f,  -0.15152083470820507f,
        0.35293960239595695f,   -0.588188277772602f,    0.7502940742363774f};
    return c[i];
  }
};
template <> struct Tail<f64> {
  static constexpr int terms = 22;
  static constexpr f64 end = 40.0, k = 5.5;
  static HD f64 coefficient(int i) {
    constexpr f64 c[terms] = {
        -2.6089786072799307e-09, -5.741271549765598e-09,  2.2933730888048783e-08,
        5.0471537980641335e-08,  -1.7745106516978097e-07, -2.679978329902207e-07,
        1.4836476894253894e-06,  4.4646680155067967e-07,  -1.2118743512648596e-05,
        1.6319949812801757e-05,  7.141478739249692e-05,   -0.0003245226482919879,
        0.0002696040163971622,   0.0024429826748350683,   -0.013923510567905448,
        0.04509758081477901,     -0.10970308995854398,    0.21787243285796895,
        -0.3670490652936261,     0.5355964890624945,      -0.685183420574338,
        0.7737696342764068};
    return c[i];
  }
};

// exp(-z*z/2): z*z rounded once would cost z*z/4 units in the last place.
template <class A> HD A half_square_exponential(A z) {
  const A high = A(-0.72134752044448170368);  // -log2(e)/2, and what its rounding leaves
  const A low = sizeof(A) == 4 ? A(-9.629814955633087e-09) : A(-1.0177636870465517e-17);
  A square = z * z, square_rest = fused(z, z, -square);
  A exponent = square * high;
  A rest = fused(square, low, fused(square_rest, high, fused(square, high, -exponent)));
  A e = exponential2(exponent);
  return fused(e, rest * A(0.69314718055994530942), e);
}

// The normal distribution function and density at b from one exponential. Far below 0 both keep
// their relative accuracy.
template <class A> HD Pair<A> normal(A b) {
  using C = Tail<A>;
  A z = magnitude(b);
  z = z > C::end ? C::end : z;
  A q = half_square_exponential(z);
  A r = reciprocal(z + C::k), u = (z - C::k) * r;
  A tail = C::coefficient(0);
  UNROLL for (int i = 1; i < C::terms; ++i) tail = fused(tail, u, C::coefficient(i));
  tail = q * (tail * r);
  return {b < 0 ? tail : 1 - tail, q * A(0.39894228040143267794)};
}

// The same to 2^-20 and a few roundings of b*b, also where it is small: the tail by
// r = 1/(1 + 0.36 z) and a polynomial in r, fitted for z up to 13.2, behind which it is 0.
HD Pair<f32> quick_normal(f32 b) {
  const f32 r = reciprocal(fused(magnitude(b), 0.36f, 1.0f));
  f32 p = fused(0.047526996582746506f, r, -0.18137510120868683f);
  p = fused(p, r, 0.18314574658870697f);
  p = fused(p, r, 0.02503911219537258f);
  p = fused(p, r, 0.1402716189622879f);
  p = fused(p, r, 0.14167135953903198f);
  p = fused(p, r, 0.14372025430202484f);
  const f32 e = exponential2(b * b * -0.72134752f), tail = e * r * p;
  return {b < 0 ? tail : 1 - tail, e * 0.39894228f};
}
HD Pair<f64> quick_normal(f64 b) { return normal(b); }

// The weight of b in the tanh form of gelu, and the slope of that weight.
template <bool QUICK = false, class A> HD Pair<A> normal_tanh(A b) {
  const A scale = A(1.5957691216057307118), cube = A(0.044715);
  // Past 40 the weight is 0 or 1 in any type, while the cube would go on to infinity.
  b = b > 40 ? A(40) : b < -40 ? A(-40) : b;
  A square = b * b;
  Pair<A> on = sigmoid<QUICK>(scale * fused(cube * square, b, b));
  return {on.first, on.first * on.second * (scale * fused(3 * cube, square, A(1)))};
}

// x from low to high; NaN at NaN.
template <class A> HD A clipped(A x, A low, A high) {
  return x <= low ? low : x >= high ? high : x;
}

// What weighs its own argument: the product, and its slope.
template <class A> HD Pair<A> weighed(A b, Pair<A> weight) {
  return {b * weight.first, fused(b, weight.second, weight.first)};
}
template <class A> HD Pair<A> gelu(A b) { return weighed(b, normal(b)); }
template <class A> HD Pair<A> quick_gelu(A b) { return weighed(b, quick_normal(b)); }
template <class A, bool QUICK = false> HD Pair<A> gelu_tanh(A b) {
  return weighed(b, normal_tanh<QUICK>(b));
}
template <class A, bool QUICK = false> HD Pair<A> silu(A b) {
  Pair<A> s = sigmoid<QUICK>(b);
  return {b * s.first, s.first * fused(b, s.second, A(1))};
}
// tanh(softplus(b)) and its slope are quotients of polynomials in the exponential whose terms are
// all positive. Past 22 they are 1 and, times b, 0 in any type.
template <class A, bool QUICK = false> HD Pair<A> mish(A b) {
  const bool far = b > 22;
  const A e = exponential<QUICK>(far ? A(22) : b), num = e * (2 + e), share = reciprocal(2 + num);
  return weighed(b, {num * share, far ? A(0) : 4 * e * (1 + e) * (share * share)});
}

// cos and sin of a signed fraction of a turn, in units of 2^-64 turns: exact reduction in integers,
// then minimax polynomials on an eighth of a turn to either side.
template <class A> struct Circle;
template <> struct Circle<f32> {
  using Turn = u32;
  static HD f32 radians(u32 r) { return f32(i32(r)) * 1.4629180792671596e-09f; }
  static HD f32 sine(f32 t, f32 s) {
    f32 p = fused(s, -0.00019516977772582322f, 0.008332176133990288f);
    return fused(fused(p, s, -0.16666655242443085f), s * t, t);
  }
  static HD f32 cosine(f32 s) {
    f32 p = fused(s, 2.4432785721728578e-05f, -0.0013887312961742282f);
    return fused(fused(fused(p, s, 0.04166664555668831f), s, -0.5f), s, 1.0f);
  }
};
template <> struct Circle<f64> {
  using Turn = u64;
  static HD f64 radians(u64 r) { return f64(i64(r)) * 3.4061215800865545e-19; }
  static HD f64 sine(f64 t, f64 s) {
    f64 p = 1.5896666490423456e-10;
    p = fused(p, s, -2.5050755961166208e-08);
    p = fused(p, s, 2.755731367866455e-06);
    p = fused(p, s, -0.00019841269829771164);
    p = fused(p, s, 0.00833333333332237);
    return fused(fused(p, s, -0.16666666666666632), s * t, t);
  }
  static HD f64 cosine(f64 s) {
    f64 p = -1.1358423540694542e-11;
    p = fused(p, s, 2.0875698709079975e-09);
    p = fused(p, s, -2.7557314163981447e-07);
    p = fused(p, s, 2.480158728880005e-05);
    p = fused(p, s, -0.0013888888888872975);
    p = fused(p, s, 0.041666666666666595);
    return fused(fused(p, s, -0.5), s, 1.0);
  }
};

template <class A> HD Pair<A> cos_sin(i64 phase) {
  using C = Circle<A>;
  using Turn = typename C::Turn;
  // As many of the upper bits as the type resolves.
  constexpr int BITS = 8 * sizeof(Turn);
  const Turn turn = Turn(u64(phase) >> (64 - BITS));
  // To the nearest quarter; unsigned, since the last one wraps around.
  const Turn quarter = (turn + (Turn(1) << (BITS - 3))) >> (BITS - 2);
  A t = C::radians(turn - (quarter << (BITS - 2)));
  A s = t * t, sine = C::sine(t, s), cosine = C::cosine(s);
  A c = quarter & 1 ? sine : cosine, d = quarter & 1 ? cosine : sine;
  return {(quarter + 1) & 2 ? -c : c, quarter & 2 ? -d : d};
}

}  // namespace baracuda
