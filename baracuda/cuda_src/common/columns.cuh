// Scatter on chip across long columns: a cluster of CLUSTER blocks takes as many columns, a block
// one of them. Blocks read lines of all columns, so that memory sees runs, and hand each other the
// elements through distributed shared memory; so too with the results.
//
// The sums are those of ScatterTiles. A thread keeps all elements that it adds.
#pragma once
#include "bins.cuh"
#include "cluster.cuh"
#include "tiles.cuh"
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)

namespace baracuda {

template <class T, class P, int QUADS, class I, bool ADD> struct ScatterColumns {
  using A = Acc<T>;
  static constexpr int CLUSTER = 8, RESIDENT = 2;
  using Sums = Bins<T>;

  struct Args {
    const T* values;
    const P* index;
    T* target;
    Report* listener;
    i64 extent;
    u32 ticket, bits, length, room;     // elements of a column; bins, and one for what has none
    u32 lines, written;                 // of a block: of elements, of bins; multiples of 4
    I columns, steps[3];                // along the axis
    Extent<typename Unsigned<I>::type> groups;
    typename Unsigned<I>::type pad;
    Walk<0, 3, I> walk;  // outer items
  };

  // Copy n elements, a multiple of 8, to another block.
  template <class E> static DEVICE void hand(const E* from, E* to, u32 n) {
    constexpr u32 N = lesser(8, 16 / int(sizeof(E)));
    for (u32 i = threadIdx.x * N; i < n; i += blockDim.x * N) store<N>(to + i, load<N>(from + i));
  }

  static DEVICE void run(const Args& args) {
    using U = typename Unsigned<I>::type;
    extern __shared__ __align__(16) u32 words[];
    const u32 rank = blockIdx.x % CLUSTER, tile = blockIdx.x / CLUSTER;
    const Sums sums{words, args.room, int(args.bits)};
    const I outer = I(args.groups.divide(U(tile)));
    const I first = I(tile - u32(outer) * u32(args.groups.size)) * CLUSTER;
    I base[3];
    args.walk.template offsets<1>(outer, base);
    cluster_arrive();
    // Elements of all columns, a thread takes two columns of four lines at a time: first sorted by
    // columns, then in runs to the block of each.
    const u32 lines = args.lines, held = CLUSTER * lines;
    T* values = reinterpret_cast<T*>(words);  // [CLUSTER][lines], and places alike
    u16* places = reinterpret_cast<u16*>(values + held);
    T* sorted = reinterpret_cast<T*>(places + held);
    u16* sorted_places = reinterpret_cast<u16*>(sorted + held);
    const u32 pair = threadIdx.x % (CLUSTER / 2) * 2, low = rank * args.lines;
    u32 highest = 0;
    const u32 extent = u32(args.extent);
    UNROLL for (int q = 0; q < (QUADS + 1) / 2; ++q) {
      const u32 line = (threadIdx.x / (CLUSTER / 2) + q * (blockDim.x / (CLUSTER / 2))) * 4;
      if (line >= lines) break;
      Vec<P, 2> index[4];
      Vec<T, 2> value[4];
      UNROLL for (int j = 0; j < 4; ++j) {
        // A line that is not there is read as the last, and counts as zeros.
        const u32 k = low + line + j, at = k < args.length ? k : args.length - 1;
        index[j] = load<2>(args.index + base[1] + I(at) * args.steps[1] + first + pair);
        value[j] = load<2>(args.values + base[0] + I(at) * args.steps[0] + first + pair);
        if (k >= args.length) value[j] = Vec<T, 2>{};
      }
      UNROLL for (int c = 0; c < 2; ++c) {
        Vec<T, 4> column;
        Vec<u16, 4> place;
        UNROLL for (int j = 0; j < 4; ++j) {
          const u32 i = narrowed(index[j].get(c));
          highest = highest > i ? highest : i;
          column.set(j, value[j].get(c));
          place.set(j, u16(i < extent ? i : extent));
        }
        store<4>(sorted + (pair + c) * lines + line, column);
        store<4>(sorted_places + (pair + c) * lines + line, place);
      }
    }
    __syncthreads();
    cluster_wait();
    UNROLL for (u32 c = 0; c < CLUSTER; ++c) {
      const u32 to = (rank + c) % CLUSTER;  // not all to the same one at once
      hand(sorted + to * lines, of_block(values, to) + low, lines);
      hand(sorted_places + to * lines, of_block(places, to) + low, lines);
    }
    cluster_sync();
    // The column of this block.
    Vec<T, 4> value[QUADS];
    u32 bin[QUADS][4];
    Range range;
    UNROLL for (int q = 0; q < QUADS; ++q) {
      const u32 k = (threadIdx.x + q * blockDim.x) * 4;
      const u32 at = k < held ? k : 0;
      const Vec<u16, 4> place = load<4>(places + at);
      value[q] = k < held ? load<4>(values + at) : Vec<T, 4>{};
      UNROLL for (int j = 0; j < 4; ++j) {
        bin[q][j] = place.get(j);
        range.add(Bits<A>::key(widen(value[q], j)));
      }
    }
    range.join();
    const bool exact = range.exact<T>(sums.bits);
    const u32 scale = range.scale<A>();
    if (exact) {
      sums.one().clear();
    } else {
      sums.own().clear();
    }
    __syncthreads();
    const A up = factor<A>(scale, sums.bits), down = inverse<A>(scale, sums.bits);
    if (exact) {
      UNROLL for (int q = 0; q < QUADS; ++q) {
        UNROLL for (int j = 0; j < 4; ++j) sums.add(bin[q][j], widen(value[q], j) * up);
      }
    } else {
      UNROLL for (int q = 0; q < QUADS; ++q) {
        UNROLL for (int j = 0; j < 4; ++j) sums.mark(bin[q][j], widen(value[q], j));
      }
      __syncthreads();
      UNROLL for (int q = 0; q < QUADS; ++q) {
        UNROLL for (int j = 0; j < 4; ++j) sums.add_own(bin[q][j], widen(value[q], j));
      }
    }
    __syncthreads();
    UNROLL for (int q = 0; q < QUADS; ++q) {
      const u32 n = (threadIdx.x + q * blockDim.x) * 4;
      A x[4];
      UNROLL for (int j = 0; j < 4; ++j) {
        const u32 at = n + j < args.extent ? n + j : 0;
        u32 one[1][Sums::ONE_SCALE], own[1][Sums::OWN_SCALE];
        if (exact) {
          sums.one().template read<1>(at, one);
          x[j] = sums.sum(one[0]) * down;
        } else {
          sums.own().template read<1>(at, own);
          x[j] = sums.sum_own(own[0]);
        }
      }
      narrow(x, value[q]);
    }
    // Results to the blocks that write their lines.
    cluster_sync();
    T* results = reinterpret_cast<T*>(words);  // [CLUSTER][written]
    UNROLL for (int q = 0; q < QUADS; ++q) {
      const u32 n = (threadIdx.x + q * blockDim.x) * 4, to = n / args.written;
      if (n >= CLUSTER * args.written) continue;
      store<4>(of_block(results, to) + rank * args.written + n - to * args.written, value[q]);
    }
    cluster_sync();
    for (u32 line = threadIdx.x; line < args.written; line += blockDim.x) {
      const i64 n = i64(rank) * args.written + line;
      if (n >= args.extent) break;
      constexpr int V = lesser(CLUSTER, 16 / int(sizeof(T)));
      T* to = args.target + base[2] + I(n) * args.steps[2] + first;
      UNROLL for (int c = 0; c < CLUSTER; c += V) {
        A x[V];
        UNROLL for (int v = 0; v < V; ++v) x[v] = widen(results[(c + v) * args.written + line]);
        put<ADD>(to + c, x);
      }
    }
    if (highest < extent) return;
    ROLLED for (u32 i = threadIdx.x; i < args.lines * CLUSTER; i += blockDim.x) {
      const u32 k = low + i / CLUSTER, c = i % CLUSTER;
      if (k >= args.length) return;
      const i64 position = (i64(outer) * args.length + k) * args.columns + first + c;
      valid(args.index[base[1] + I(k) * args.steps[1] + first + c], args.extent, args.listener,
            args.ticket, position);
    }
  }
};

}  // namespace baracuda
#endif
