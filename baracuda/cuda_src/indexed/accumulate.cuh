// Scatter on chip: a block owns the bins of a tile, sums them in shared memory as integers that
// no order changes, and writes each once: nothing is zeroed before, nothing rounded twice.
//
// The first elements give a scale for all. Only where that turns out to lose a bit of any, each bin
// gets a scale of its own, in passes over the elements again. A thread has DEPTH vectors of V
// elements in flight; XI indices are read at a time, VO results written.
#pragma once
#include "bins.cuh"
#include "tiles.cuh"
#ifdef __CUDACC__

namespace baracuda {

// What a tile is to the sums, At, says where its elements and bins are; R is what is written.
template <class T, class P, class R, int V, int XI, int VO, int DEPTH, bool ADD> struct SumOnChip {
  using A = Acc<T>;
  using Sums = Bins<T>;
  // Of a thread, the vectors that give the scale: the same elements for any V up to 4, so that no
  // bits depend on how wide accesses are.
  static constexpr int FIRST = greater(4 / V, 1);
  static_assert(FIRST <= DEPTH, "at least four elements of each thread");

  // Vectors of a thread that are under way together.
  template <int N> struct Batch {
    Vec<T, V> value[N];
    Vec<P, V> index[N];
    u32 lane[N];

    template <class At> DEVICE void take(const At& tile, u32 i) {
      UNROLL for (int d = 0; d < N; ++d) {
        const auto place = tile.template element<V>(i + d * blockDim.x);
        value[d] = load<V>(tile.args.values + place.values);
        tile.template indices<V, XI>(place, index[d]);
        lane[d] = place.lane;
        if (!place.there) value[d] = Vec<T, V>{};
      }
    }
    // f(bin, x) of every element; `highest` becomes the largest index.
    template <class At, class F> DEVICE void each(const At& tile, u32& highest, F f) const {
      UNROLL for (int d = 0; d < N; ++d) {
        u32 bin[V];
        tile.bins_of(index[d], lane[d], highest, bin);
        UNROLL for (int v = 0; v < V; ++v) f(bin[v], widen(value[d], v));
      }
    }
    template <int FROM, int TO> DEVICE void add_to(Range& range) const {
      UNROLL for (int d = FROM; d < TO; ++d) {
        UNROLL for (int v = 0; v < V; ++v) range.add(Bits<A>::key(widen(value[d], v)));
      }
    }
  };

  // The results of a tile: f makes sums of the words of bins side by side.
  template <class At, int N, class F>
  static DEVICE void write(const At& tile, const Words<N>& words, F f) {
    for (u32 i = threadIdx.x; i < tile.held(); i += blockDim.x) {
      decltype(tile.first) offset;
      u32 bin, word[VO][N];
      if (!tile.template whole<VO>(i, offset, bin)) continue;
      words.template read<At::SIDE_BY_SIDE ? VO : 1>(bin, word);
      A x[VO];
      f(word, x);
      put<ADD>(tile.args.bins + offset, x);
    }
  }

  // Sum the tile that `from` describes, its bins behind At::FRONT words; the largest index.
  template <class At, class... From>
  static DEVICE u32 run(u32 room, u32 bits, From... from) {
    extern __shared__ __align__(16) u32 memory[];
    const At tile(from...);
    const Sums sums{memory + At::FRONT, room, int(bits)};
    Batch<DEPTH> batch;
    u32 i = threadIdx.x, highest = 0;
    batch.take(tile, i);
    sums.one().clear();
    Range range;
    batch.template add_to<0, FIRST>(range);
    Range some = range;
    some.join();
    batch.template add_to<FIRST, DEPTH>(range);
    const u32 scale = some.scale_for_more<A>();
    const A up = factor<A>(scale, sums.bits), down = inverse<A>(scale, sums.bits);
    ROLLED while (true) {
      batch.each(tile, highest, [&](u32 bin, A x) { sums.add(bin, x * up); });
      i += DEPTH * blockDim.x;
      if (i >= tile.end) break;
      batch.take(tile, i);
      batch.template add_to<0, DEPTH>(range);
    }
    range.join(1);
    if (!range.exact<T>(scale, sums.bits)) return careful<At, From...>(room, bits, from...);
    write(tile, sums.one(), [&](const u32 (&word)[VO][Sums::ONE_SCALE], A (&x)[VO]) {
      sums.sums(word, x);
      UNROLL for (int v = 0; v < VO; ++v) x[v] *= down;
    });
    return highest;
  }

  // At scales of their own, as many bins at a time as there is room for. It shares no variable with
  // the usual way, which therefore keeps its own in registers.
  template <class At, class... From>
  static __device__ __noinline__ u32 careful(u32 room, u32 bits, From... from) {
    extern __shared__ __align__(16) u32 memory[];
    const At whole(from...);
    const Sums sums{memory + At::FRONT, room, int(bits)};
    const u32 size = whole.most(sums.own_room());
    u32 highest = 0;
    ROLLED for (u32 begin = 0; begin < whole.bins; begin += size) {
      const At tile = whole.part_of(begin, size);
      __syncthreads();
      sums.own().clear();
      ROLLED for (int pass = 0; pass < 2; ++pass) {
        __syncthreads();
        ROLLED for (u32 i = threadIdx.x; i < tile.end; i += blockDim.x) {
          Batch<1> batch;
          batch.take(tile, i);
          batch.each(tile, highest, [&](u32 bin, A x) {
            if (pass == 0) {
              sums.mark(bin, x);
            } else {
              sums.add_own(bin, x);
            }
          });
        }
      }
      __syncthreads();
      write(tile, sums.own(), [&](const u32 (&word)[VO][Sums::OWN_SCALE], A (&x)[VO]) {
        UNROLL for (int v = 0; v < VO; ++v) x[v] = sums.sum_own(word[v]);
      });
    }
    return highest;
  }
};

template <class T, class P, Direction D, int V, int XI, int VO, int DEPTH, class I, bool ADD>
struct ScatterTiles {
  static constexpr int RESIDENT = 2;

  struct Args : TileArgs<const T, P, T, I> {
    u32 bits, last;
  };
  using At = Tile<D, Args, I>;

  static DEVICE void run(const Args& args) {
    using Sum = SumOnChip<T, P, T, V, XI, VO, DEPTH, ADD>;
    const u32 highest = Sum::template run<At, const Args&>(args.room, args.bits, args);
    if (highest >= args.extent) look<D, V, I>(args);
  }
};

}  // namespace baracuda
#endif
