// Philox4x32-10 of Salmon, Moraes, Dror and Shaw (SC 2011): random words by seed, offset and place.
#pragma once
#include "types.cuh"

namespace baracuda {

// The 64 bits of a product. Written as a product of u64, it costs one more addition.
HD u64 product(u32 a, u32 b) {
#ifdef __CUDA_ARCH__
  u64 both;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(both) : "r"(a), "r"(b));
  return both;
#else
  return u64(a) * b;
#endif
}

// What a functor of random masks begins with.
struct Stream {
  static constexpr bool numbered = true;
  u64 seed, offset;

  // For each of N neighbours a word that is compared with a probability. The four words of a
  // counter are eight halves; the word of an element is its half, and behind it the next one. N
  // divides the number of the first. Arrays in lists have streams of their own.
  template <int N> HD void draw(u64 number, u32 (&words)[N], u64 place = 0) const {
    static_assert(N <= 8 && (N & (N - 1)) == 0, "neighbours of one counter");
    u32 four[4];
    counted(number >> 3, place, four);
    // The first half is found once for all N: a compiler then knows where the others are.
    if constexpr (N < 8) rotate<2>(four, number & 4);
    if constexpr (N < 4) rotate<1>(four, number & 2);
    const bool behind = N == 1 && number & 1;
    UNROLL for (int i = 0; i < N; ++i) {
      const u32 some = four[i >> 1];
      words[i] = i & 1 || behind ? some << 16 | four[(i >> 1) + 1 & 3] >> 16 : some;
    }
  }

 protected:
  // The four words of a counter.
  HD void counted(u64 group, u64 place, u32 (&four)[4]) const {
    const u64 stream = offset + (place << 32);
    u32 a = u32(group), b = u32(group >> 32), c = u32(stream), d = u32(stream >> 32);
    u32 first = u32(seed), second = u32(seed >> 32);
    UNROLL for (int turn = 0; turn < 10; ++turn) {
      const u64 left = product(a, 0xD2511F53u), right = product(c, 0xCD9E8D57u);
      a = u32(right >> 32) ^ b ^ first;
      b = u32(right);
      c = u32(left >> 32) ^ d ^ second;
      d = u32(left);
      first += 0x9E3779B9u;
      second += 0xBB67AE85u;
    }
    four[0] = a;
    four[1] = b;
    four[2] = c;
    four[3] = d;
  }
  // The words rotated by BY places, where `some`. Selections, as registers have no run-time index.
  template <int BY> static HD void rotate(u32 (&x)[4], bool some) {
    const u32 was[4] = {x[0], x[1], x[2], x[3]};
    UNROLL for (int i = 0; i < 4; ++i) x[i] = some ? was[i + BY & 3] : was[i];
  }
};

// What a functor of random numbers begins with: words that share no bits, four of a counter.
struct WholeWords : Stream {
  template <int N> HD void draw(u64 number, u32 (&words)[N], u64 place = 0) const {
    UNROLL for (int first = 0; first < N; first += 4) {
      u32 four[4];
      counted((number >> 2) + (first >> 2), place, four);
      if constexpr (N < 4) rotate<2>(four, number & 2);
      if constexpr (N < 2) rotate<1>(four, number & 1);
      UNROLL for (int i = first; i < N && i < first + 4; ++i) words[i] = four[i & 3];
    }
  }
};

// The words with which an element stays.
struct Cutoff {
  bool some;
  u32 least;

  HD bool operator()(u32 word) const { return some && word >= least; }
};

// A mask by a probability: an element stays where its word is not below p * 2^32, rounded down.
struct Mask : Stream {
  f64 p;

  // What stays is scaled by this; where nothing stays, no product with it may be infinite.
  template <class A> HD A rise() const { return A(1) / A(p < 1 ? 1 - p : 1); }
  // Found once of a probability: each conversion of float64 takes as long as several products.
  HD Cutoff cutoff() const { return {p < 1, p < 1 ? u32(p * 4294967296.0) : 0}; }
  // A bit for each of N elements, the first of which may have any number where they do not lie
  // TOGETHER in one counter.
  template <int N, bool TOGETHER> HD u32 left(u64 number) const {
    u32 bits = 0;
    if constexpr (TOGETHER) {
      u32 words[N];
      draw(number, words);
      UNROLL for (int i = 0; i < N; ++i) bits |= u32(stays(words[i])) << i;
    } else {
      UNROLL for (int i = 0; i < N; ++i) {
        u32 word[1];
        draw(number + i, word);
        bits |= u32(stays(word[0])) << i;
      }
    }
    return bits;
  }

 private:
  // Not by `cutoff`: where it is found once, the assembler of CUDA 13 loses words of elements.
  HD bool stays(u32 word) const { return p < 1 && word >= u32(p * 4294967296.0); }
};

// Whether elements of a functor have random words.
template <class F> HD constexpr bool numbered(decltype(F::numbered)) { return F::numbered; }
template <class F> HD constexpr bool numbered(...) { return false; }

// A functor of which several elements share a number, and so a word.
template <class F> struct Shared : F {
  struct Ready : decltype(F().ready()) {
    template <int N> HD void draw(u64 number, u32 (&words)[N], u64 place = 0) const {
      u32 one[1];
      Stream::draw(number, one, place);
      UNROLL for (int i = 0; i < N; ++i) words[i] = one[0];
    }
  };
  HD Ready ready() const { return {F::ready()}; }
};

}  // namespace baracuda
