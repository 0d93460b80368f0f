// Elementwise schedule: any number of inputs and outputs, each with strides of its own.
//
// A functor F<A> declares `inputs` and `outputs` and maps x[inputs] to y[outputs]; its members are
// the op's run-time values. A thread has DEPTH vectors of V elements of every input in flight. The
// inputs whose bits are set in ONE have one element for all, of which each gets a `share`; the
// outputs whose bits are set in ADD are added to. The inputs, then outputs, whose bits are set in
// WIDE hold the accumulate type; MANY are those that come in vectors. The functor of a NUMBERED
// op also takes a random word, which follows from the number of its element in the whole array, in
// C order, or has its first output rounded by it.
#pragma once
#include "index.cuh"
#include "stochastic.cuh"
#include "vec.cuh"

namespace baracuda {

// A functor as elements are put to it: what it makes `ready` is found once by each thread.
template <class F> HD auto readied(const F& f, int) -> decltype(f.ready()) { return f.ready(); }
template <class F> HD const F& readied(const F& f, long) { return f; }

// Whether the first output of a NUMBERED functor is rounded by the word of its element.
template <class F> HD constexpr bool rounds(decltype(F::rounds)) { return true; }
template <class F> HD constexpr bool rounds(...) { return false; }

// Whether a functor reads nothing of its inputs.
template <class F> HD constexpr bool blind(decltype(F::blind)) { return F::blind; }
template <class F> HD constexpr bool blind(...) { return false; }

}  // namespace baracuda
#ifdef __CUDACC__

namespace baracuda {

template <bool THERE> struct Share {};
template <> struct Share<true> {
  f64 share;
};

// N elements of each of K arrays of A, in accesses as wide as those of N elements of T.
template <class A, class T, int K, int N, bool THERE> struct Pieces {};
template <class A, class T, int K, int N> struct Pieces<A, T, K, N, true> {
  static constexpr int WIDTH = greater(N * int(sizeof(T)) / int(sizeof(A)), 1);
  Vec<A, WIDTH> at[K][N / WIDTH];

  DEVICE void fetch(int k, const A* p) {
    UNROLL for (int j = 0; j < N / WIDTH; ++j) at[k][j] = load<WIDTH>(p + j * WIDTH);
  }
  DEVICE A get(int k, int i) const { return at[k][i / WIDTH].get(i % WIDTH); }
  template <bool ADD> static DEVICE void put_all(A* p, const A (&x)[N]) {
    UNROLL for (int j = 0; j < N / WIDTH; ++j) {
      A part[WIDTH];
      UNROLL for (int i = 0; i < WIDTH; ++i) part[i] = x[j * WIDTH + i];
      put<ADD>(p + j * WIDTH, part);
    }
  }
};

template <
    template <class> class F, class T, int V, int DEPTH, int DIMS, class I, int ADD, int ONE = 0,
    int WIDE = 0, bool NUMBERED = false>
struct Elementwise {
  using A = Acc<T>;
  using Functor = F<A>;
  static constexpr int IN = Functor::inputs, OUT = Functor::outputs, ALL = IN + OUT + NUMBERED;
  // Narrow elements bring more arithmetic per byte, which takes more warps to hide: exact geglu
  // in bf16 on an H200 has 0.88 of the copy ceiling with 4 blocks and 0.99 with 8, its backward
  // 0.98 with 4 and 1.00 with 6, gelu 0.90 with 6 and 0.95 with 8. 64-bit offsets and three outputs
  // leave no registers for that, and the keys of random words none for two vectors, least for wide
  // ones.
  static constexpr int MANY = WIDE & ~ONE;
  static constexpr bool LONG = NUMBERED && DEPTH > 1;
  static constexpr bool FEW =
      sizeof(T) != 2 || sizeof(I) == 8 || DIMS == 0 || ADD || (LONG && MANY);
  static constexpr bool SMALL = !LONG && (IN * OUT == 1 || (IN == 2 && OUT == 1 && !MANY));
  // Blocks of 256 threads, or of 128 with several inputs.
  static constexpr int BLOCKS = FEW || IN > 3 || OUT > 2 ? 4 : SMALL ? 8 : 6;
  static constexpr int RESIDENT = BLOCKS * (IN > 1 ? 2 : 1);
  // Where no more is read than written, blocks ask the L2 for what later ones will read: loads that
  // wait behind stores hold up both.
  static_assert(!ONE || !MANY, "beside one element for all, no vectors of the accumulate type");
  static constexpr bool BLIND = blind<Functor>(0);
  static constexpr bool EARLY = IN - ones(ONE) <= OUT && DIMS == 1 && !ADD && !MANY && !BLIND;

  struct Args : Operands<T, IN, OUT>, Functor, Share<ONE != 0>, Beginning<NUMBERED> {
    I items, tail;  // vectors, and the elements left over behind them
    I ahead, pad;   // vectors from what a thread loads to what it prefetches
    Walk<DIMS, ALL, I> walk;
  };

  static HD constexpr bool one(int k) { return ONE >> k & 1; }
  static HD constexpr bool wide(int k) { return WIDE >> k & 1; }

  template <int N> using Wide = Pieces<A, T, IN, N, MANY != 0>;
  template <int N> struct Batch {
    Vec<T, N> x[IN];
    Wide<N> wide;
  };

  template <int N>
  static DEVICE void fetch(const Args& args, const I (&at)[ALL], Batch<N>& batch) {
    UNROLL for (int k = 0; k < IN; ++k) {
      if constexpr (MANY != 0) {
        if (MANY >> k & 1) {
          batch.wide.fetch(k, reinterpret_cast<const A*>(args.in[k]) + at[k]);
          continue;
        }
      }
      if constexpr (BLIND) batch.x[k] = {};
      else if (!one(k)) batch.x[k] = load<N>(args.in[k] + at[k]);
    }
  }

  // `f` is the functor, readied. Numbers of elements begin at `base`, of array `place` in lists.
  template <int N, class G>
  static DEVICE void finish(
      const Args& args, const G& f, const I (&at)[ALL], const Batch<N>& batch, u64 base = 0,
      u64 place = 0) {
    A x[IN][N], y[OUT][N];
    UNROLL for (int k = 0; k < IN; ++k) {
      if constexpr (ONE != 0) {
        const A all = one(k) ? widened(args.in[k], 0, wide(k)) * A(args.share) : A(0);
        UNROLL for (int i = 0; i < N; ++i) x[k][i] = one(k) ? all : widen(batch.x[k], i);
      } else if constexpr (WIDE != 0) {
        UNROLL for (int i = 0; i < N; ++i) {
          x[k][i] = wide(k) ? batch.wide.get(k, i) : widen(batch.x[k], i);
        }
      } else {
        widen(batch.x[k], x[k]);
      }
    }
    u32 words[N];
    if constexpr (NUMBERED) f.draw(base + u64(at[ALL - 1]), words, place);
    UNROLL for (int i = 0; i < N; ++i) {
      A from[IN], to[OUT];
      UNROLL for (int k = 0; k < IN; ++k) from[k] = x[k][i];
      if constexpr (rounds<Functor>(0)) {
        evaluate<T>(f, from, to);
        if (!wide(IN)) to[0] = rounded<T>(to[0], words[i]);
      } else if constexpr (NUMBERED) {
        f(from, to, words[i]);
      } else {
        evaluate<T>(f, from, to);
      }
      UNROLL for (int k = 0; k < OUT; ++k) y[k][i] = to[k];
    }
    UNROLL for (int k = 0; k < OUT; ++k) {
      const bool adds = ADD >> k & 1;
      if constexpr (MANY != 0) {
        if (wide(IN + k)) {
          A* const out = reinterpret_cast<A*>(args.out[k]) + at[IN + k];
          if (adds) Wide<N>::template put_all<true>(out, y[k]);
          else Wide<N>::template put_all<false>(out, y[k]);
          continue;
        }
      }
      if (adds) put<true>(args.out[k] + at[IN + k], y[k]);
      else put<false>(args.out[k] + at[IN + k], y[k]);
    }
  }

  static DEVICE u64 beginning(const Args& args) {
    if constexpr (NUMBERED) return u64(args.first);
    return 0;
  }

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    const I step = I(blockDim.x);
    const auto& f = readied<Functor>(args, 0);
    I at[DEPTH][ALL];
    Batch<V> batch[DEPTH];
    if constexpr (EARLY) {
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        I item = first + d * step + args.ahead;
        if (item >= args.items) continue;
        UNROLL for (int k = 0; k < IN; ++k) {
          if (!one(k)) prefetch<V>(args.in[k] + item * V);
        }
      }
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      I item = first + d * step;
      if (item < args.items) {
        args.walk.template offsets<V>(item, at[d]);
        fetch<V>(args, at[d], batch[d]);
      }
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      I item = first + d * step;
      if (item < args.items) {
        finish<V>(args, f, at[d], batch[d], beginning(args));
      } else if (DIMS == 1 && V > 1 && item < args.items + args.tail) {
        // What does not fill a vector: the same code for one element, by the threads that follow.
        I one[ALL];
        Batch<1> rest;
        UNROLL for (int k = 0; k < ALL; ++k) one[k] = args.items * (V - 1) + item;
        fetch<1>(args, one, rest);
        finish<1>(args, f, one, rest, beginning(args));
      }
    }
  }
};

}  // namespace baracuda
#endif
