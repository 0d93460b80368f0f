// Bins of a block in shared memory: sums that no order changes, at one scale or at their own.
#pragma once
#include "common/exact_integers.cuh"
#include "common/vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// A bin has N words: its digits; or its key and then its digits. They lie side by side where N is
// odd; else in two planes of `room` bins, so that bins meet all banks either way.
template <int N> struct Words {
  static constexpr int SIDE = N % 2 ? N : N / 2, PLANES = N % 2 ? 1 : 2;

  u32* words;
  u32 room;

  DEVICE u32* at(u32 bin, int w) const {
    return words + (bin + w / SIDE * room) * SIDE + w % SIDE;
  }

  DEVICE void clear() const {
    for (u32 i = threadIdx.x * 4; i < room * N; i += blockDim.x * 4) {
      store<4>(words + i, Vec<u32, 4>{});
    }
  }
  // The words of V bins side by side, in accesses of STEP.
  template <int STEP, int V> DEVICE void read(u32 bin, u32 (&word)[V][N]) const {
    UNROLL for (int p = 0; p < PLANES; ++p) {
      UNROLL for (int i = 0; i < V * SIDE; i += STEP) {
        const Vec<u32, STEP> part = load<STEP>(at(bin, p * SIDE) + i);
        UNROLL for (int j = 0; j < STEP; ++j) {
          word[(i + j) / SIDE][p * SIDE + (i + j) % SIDE] = part.get(j);
        }
      }
    }
  }
};

template <class T> struct Bins {
  using A = Acc<T>;
  static constexpr int ONE_SCALE = Exact<T>::WORDS, OWN_SCALE = 1 + Digits<A>::WORDS;

  u32* words;
  u32 room;
  int bits;

  DEVICE Words<ONE_SCALE> one() const { return {words, room}; }
  // As many bins at scales of their own take more room: `own_room` of them fit.
  DEVICE Words<OWN_SCALE> own() const { return {words, own_room()}; }
  DEVICE u32 own_room() const { return room * ONE_SCALE / OWN_SCALE / 4 * 4; }

  // At one scale, which the caller has brought x to, and back.
  DEVICE void add(u32 bin, A x) const {
    u32 digit[ONE_SCALE];
    cut_up(x, bits, digit);
    UNROLL for (int w = 0; w < ONE_SCALE; ++w) atomicAdd(one().at(bin, w), digit[w]);
  }
  template <int V> DEVICE void sums(const u32 (&word)[V][ONE_SCALE], A (&x)[V]) const {
    Exact<T>::join(word, bits, x);
  }

  // At scales of their own: first the keys of all, then the elements.
  DEVICE void mark(u32 bin, A x) const { atomicMax(own().at(bin, 0), Bits<A>::key(x)); }
  DEVICE void add_own(u32 bin, A x) const {
    const u32 key = *own().at(bin, 0);
    if (key >= Bits<A>::NOT_FINITE) {
      atomicOr(own().at(bin, 1), flags(x));
      return;
    }
    u32 digit[OWN_SCALE - 1];
    split(x, key, bits, digit);
    UNROLL for (int w = 1; w < OWN_SCALE; ++w) atomicAdd(own().at(bin, w), digit[w - 1]);
  }
  DEVICE A sum_own(const u32 (&word)[OWN_SCALE]) const {
    if (word[0] == 0) return A(0);
    if (word[0] >= Bits<A>::NOT_FINITE) return not_finite<A>(word[1]);
    u32 digit[OWN_SCALE - 1];
    UNROLL for (int w = 1; w < OWN_SCALE; ++w) digit[w - 1] = word[w];
    return Digits<A>::join(digit, word[0], bits);
  }
};

// The keys of elements: the largest, and the least of those other than 0.
struct Range {
  u32 most = 0, less = ~0u;  // less: one less than the least, so that 0 is large

  DEVICE void add(u32 key) {
    most = key > most ? key : most;
    less = key - 1 < less ? key - 1 : less;
  }
  // Of all threads of the block, which all call this; in turns in two places, so that the fast do
  // not write what the slow still read.
  DEVICE void join(int place = 0) {
    __shared__ u32 parts[4][32];
    u32(*part)[32] = parts + 2 * place;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    most = __reduce_max_sync(~0u, most);
    less = __reduce_min_sync(~0u, less);
    if (lane == 0) part[0][warp] = most, part[1][warp] = less;
    __syncthreads();
    const bool there = lane < blockDim.x / 32;
    most = __reduce_max_sync(~0u, there ? part[0][lane] : 0);
    less = __reduce_min_sync(~0u, there ? part[1][lane] : ~0u);
  }
  // Whether a scale, that of the largest if none is given, keeps all bits.
  template <class T> DEVICE bool exact(int bits) const { return exact<T>(most, bits); }
  template <class T> DEVICE bool exact(u32 scale, int bits) const {
    return takes<T>(less + 1, most, scale, bits);
  }
  template <class A> DEVICE u32 scale() const {
    return most < Bits<A>::SMALL ? Bits<A>::SMALL : most;
  }
  // For elements of which these are some: the others may be four times as large.
  template <class A> DEVICE u32 scale_for_more() const {
    using B = Bits<A>;
    if (most == 0) return B::BIAS * B::ONE;
    const u32 scale = most + 2 * B::ONE, largest = B::NOT_FINITE - B::ONE;
    return most < largest - 2 * B::ONE ? (scale < B::SMALL ? B::SMALL : scale) : largest;
  }
};

}  // namespace baracuda
#endif
