// Scatter on chip across long columns: a cluster of CLUSTER blocks takes as many columns, a block
// one of them. Blocks read lines of all columns, so that memory sees runs, and send each other the
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
  using Sums = Bins<T>;
  // What is sent: sums that are added to something are rounded only then.
  using R = typename Either<ADD, A, T>::type;
  static constexpr int CLUSTER = 8, RESIDENT = 2;

  struct Args {
    const T* values;
    const P* index;
    T* target;
    Report* listener;
    i64 extent;
    u32 ticket, bits, length, room;  // elements of a column; bins, and one for what has none
    u32 lines, written;              // of a block: of elements, of bins; multiples of 8
    I columns, steps[3];             // along the axis
    Extent<typename Unsigned<I>::type> groups;
    typename Unsigned<I>::type last;
    Walk<0, 3, I> walk;  // outer items
  };

  // Where a block's columns lie before they are sent: apart, so that they meet all banks.
  template <class E> static constexpr u32 VECTOR = lesser(8, 16 / int(sizeof(E)));
  template <class E> static DEVICE u32 pitch(u32 lines) { return lines + VECTOR<E>; }

  // Out of line: rarely needed, and as long as all the rest.
  static __device__ __noinline__ void mark(Sums sums, u32 bin, A x) { sums.mark(bin, x); }
  static __device__ __noinline__ void add_own(Sums sums, u32 bin, A x) { sums.add_own(bin, x); }
  static __device__ __noinline__ A sum_own(Sums sums, u32 bin) {
    u32 word[1][Sums::OWN_SCALE];
    sums.own().template read<1>(bin, word);
    return sums.sum_own(word[0]);
  }

  // Of a line, the elements of two columns side by side.
  struct Pair {
    Vec<P, 2> index;
    Vec<T, 2> value;
  };
  static DEVICE void take(const Args& args, I values, I index, u32 line, Pair& pair) {
    pair.index = load<2>(args.index + index + I(line) * args.steps[1]);
    pair.value = load<2>(args.values + values + I(line) * args.steps[0]);
  }

  static DEVICE void run(const Args& args) {
    using U = typename Unsigned<I>::type;
    extern __shared__ __align__(16) u32 all[];
    Mailbox* mailbox = reinterpret_cast<Mailbox*>(all);
    u32* words = all + 8;
    const u32 rank = blockIdx.x % CLUSTER, tile = blockIdx.x / CLUSTER;
    const u32 lines = args.lines, held = CLUSTER * lines, written = args.written;
    if (threadIdx.x == 0) {
      mailbox[0].expect(held * u32(sizeof(T) + sizeof(u16)));
      mailbox[1].expect(CLUSTER * written * u32(sizeof(R)));
    }
    cluster_arrive_relaxed();
    const Sums sums{words, args.room, int(args.bits)};
    const I outer = I(args.groups.divide(U(tile)));
    const u32 group = tile - u32(outer) * u32(args.groups.size);
    const I first = I(group) * CLUSTER;
    I base[3];
    args.walk.template offsets<1>(outer, base);
    // Elements of all columns, a thread takes two columns of four lines at a time: first sorted by
    // columns, then in runs to the block of each.
    T* values = reinterpret_cast<T*>(words);  // [CLUSTER][lines], and places alike
    u16* places = reinterpret_cast<u16*>(values + held);
    u16* sorted_places = places + held;
    T* sorted = reinterpret_cast<T*>(sorted_places + CLUSTER * pitch<u16>(lines));
    const u32 column = threadIdx.x % (CLUSTER / 2) * 2, low = rank * lines;
    const u32 extent = u32(args.extent);
    u32 highest = 0;
    // All are asked for before any is used.
    constexpr int PARTS = (QUADS + 1) / 2;
    const u32 line = threadIdx.x / (CLUSTER / 2) * 4, step = blockDim.x / (CLUSTER / 2) * 4;
    const I in[2] = {base[0] + first + I(column), base[1] + first + I(column)};
    Pair pair[PARTS][4];
    UNROLL for (int q = 0; q < PARTS; ++q) {
      const u32 k = low + line + q * step;
      if (k + 4 <= args.length) {
        UNROLL for (int j = 0; j < 4; ++j) take(args, in[0], in[1], k + j, pair[q][j]);
      } else {
        // A line that is not there is read as the last, and counts as zeros.
        UNROLL for (int j = 0; j < 4; ++j) {
          const bool there = k + j < args.length;
          take(args, in[0], in[1], there ? k + j : args.length - 1, pair[q][j]);
          if (!there) pair[q][j].value = Vec<T, 2>{};
        }
      }
    }
    UNROLL for (int q = 0; q < PARTS; ++q) {
      const u32 at = line + q * step;
      if (at >= lines) break;
      UNROLL for (int c = 0; c < 2; ++c) {
        Vec<T, 4> value;
        Vec<u16, 4> place;
        UNROLL for (int j = 0; j < 4; ++j) {
          const u32 i = narrowed(pair[q][j].index.get(c));
          highest = highest > i ? highest : i;
          value.set(j, pair[q][j].value.get(c));
          place.set(j, u16(i < extent ? i : extent));
        }
        store<4>(sorted + (column + c) * pitch<T>(lines) + at, value);
        store<4>(sorted_places + (column + c) * pitch<u16>(lines) + at, place);
      }
    }
    before_sending();
    __syncthreads();
    cluster_wait();
    if (threadIdx.x < CLUSTER) {
      const u32 to = (threadIdx.x + rank) % CLUSTER;  // not all to the same one at once
      mailbox->send(sorted + to * pitch<T>(lines), values + low, lines * sizeof(T), to);
      mailbox->send(sorted_places + to * pitch<u16>(lines), places + low, lines * sizeof(u16), to);
    }
    mailbox->wait();
    cluster_arrive_relaxed();
    // The column of this block.
    Vec<T, 4> value[QUADS];
    Vec<u16, 4> bin[QUADS];
    Range range;
    UNROLL for (int q = 0; q < QUADS; ++q) {
      const u32 k = (threadIdx.x + q * blockDim.x) * 4;
      const u32 at = k < held ? k : 0;
      bin[q] = load<4>(places + at);
      value[q] = k < held ? load<4>(values + at) : Vec<T, 4>{};
      UNROLL for (int j = 0; j < 4; ++j) range.add(Bits<A>::key(widen(value[q], j)));
    }
    range.join();
    const bool exact = range.exact<T>(sums.bits);
    const u32 scale = range.scale<A>();
    // Everything has arrived everywhere: what was sorted here is no longer read.
    cluster_wait();
    if (exact) {
      sums.one().clear();
    } else {
      sums.own().clear();
    }
    __syncthreads();
    const A up = factor<A>(scale, sums.bits), down = inverse<A>(scale, sums.bits);
    if (exact) {
      UNROLL for (int q = 0; q < QUADS; ++q) {
        UNROLL for (int j = 0; j < 4; ++j) sums.add(bin[q].get(j), widen(value[q], j) * up);
      }
    } else {
      UNROLL for (int q = 0; q < QUADS; ++q) {
        UNROLL for (int j = 0; j < 4; ++j) mark(sums, bin[q].get(j), widen(value[q], j));
      }
      __syncthreads();
      UNROLL for (int q = 0; q < QUADS; ++q) {
        UNROLL for (int j = 0; j < 4; ++j) add_own(sums, bin[q].get(j), widen(value[q], j));
      }
    }
    __syncthreads();
    // Results, by the blocks that write their lines.
    const u32 share = blockDim.x / CLUSTER;
    const u32 warp = threadIdx.x / 32, to = (warp + rank) % CLUSTER;
    Vec<R, 4> result[QUADS];
    UNROLL for (int q = 0; q < QUADS; ++q) {
      const u32 i = (warp / CLUSTER * 32 + threadIdx.x % 32 + q * share) * 4;
      const u32 line = to * written + i, n = i < written && line < extent ? line : 0;
      A x[4];
      if (exact) {
        u32 one[4][Sums::ONE_SCALE];
        sums.one().template read<4>(n, one);
        sums.sums(one, x);
        UNROLL for (int j = 0; j < 4; ++j) x[j] *= down;
      } else {
        UNROLL for (int j = 0; j < 4; ++j) x[j] = sum_own(sums, n + j);
      }
      narrow(x, result[q]);
    }
    before_sending();
    cluster_arrive_relaxed();
    cluster_wait();
    R* results = reinterpret_cast<R*>(words);  // [CLUSTER][written]
    UNROLL for (int q = 0; q < QUADS; ++q) {
      const u32 i = (warp / CLUSTER * 32 + threadIdx.x % 32 + q * share) * 4;
      if (i < written) mailbox[1].send(result[q], results + rank * written + i, to);
    }
    mailbox[1].wait();
    for (u32 line = threadIdx.x; line < written; line += blockDim.x) {
      const i64 n = i64(rank) * written + line;
      if (n >= args.extent) break;
      constexpr int V = lesser(CLUSTER, 16 / int(sizeof(T)));
      T* target = args.target + base[2] + I(n) * args.steps[2] + first;
      UNROLL for (int c = 0; c < CLUSTER; c += V) {
        Vec<R, V> x;
        UNROLL for (int v = 0; v < V; ++v) x.set(v, results[(c + v) * written + line]);
        if constexpr (ADD) {
          put<true>(target + c, x.at);
        } else {
          store<V>(target + c, x);
        }
      }
    }
    if (highest < extent) return;
    ROLLED for (u32 i = threadIdx.x; i < lines * CLUSTER; i += blockDim.x) {
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
