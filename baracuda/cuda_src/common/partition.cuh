// Scatter of many elements to bins of which one block holds a part only, in three kernels. The
// elements of a chunk are sorted by parts of the bins; units of about as many elements of one part
// each are summed on chip, as integers that no order changes; the sums of units are joined.
//
// What is in a chunk, in a unit, and where a sum is rounded depends on the arrays alone, not on the
// device, on how wide accesses are or on the order of threads.
#pragma once
#include "bins.cuh"
#include "index.cuh"
#include "report.cuh"
#include "tiles.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Elements of a chunk, its room where every part begins at a multiple of four; threads that sort
// it, bits of the number of a bin.
constexpr u32 CHUNK = 4096, CHUNK_ROOM = CHUNK + 4 * 32, SORTERS = 256, BIN_BITS = 18;
// log2 of the bins of a part.
template <class A> constexpr u32 PART_BITS = sizeof(A) == 8 ? 12 : 13;

// The elements of a chunk that belong to a part, in fours, and the range of their keys.
struct alignas(16) Segment {
  u32 begin, fours, most, less;
};

// Elements, each with its bin in a part: in one word, or in two planes of `room`.
template <class T, bool ONE = sizeof(T) == 2> struct Staged {
  static constexpr u32 BYTES = 4;
  using Four = Vec<u32, 4>;
  u32* words;

  DEVICE Staged(void* memory, i64 room, i64 first) : words(static_cast<u32*>(memory) + first) {}
  DEVICE void put(u32 at, u32 bin, T x) const {
    words[at] = bin << 16 | reinterpret_cast<const u16&>(x);
  }
  DEVICE Four get(u32 at) const { return load<4>(words + at); }
  DEVICE void set(u32 at, const Four& four) const { store<4>(words + at, four); }
  static DEVICE u32 bin(const Four& four, int i) { return four.get(i) >> 16; }
  static DEVICE Acc<T> value(const Four& four, int i) {
    const u16 bits = u16(four.get(i));
    return widen(reinterpret_cast<const T&>(bits));
  }
};
template <class T> struct Staged<T, false> {
  static constexpr u32 BYTES = sizeof(T) + 2;
  struct Four {
    Vec<T, 4> values;
    Vec<u16, 4> bins;
  };
  T* values;
  u16* bins;

  DEVICE Staged(void* memory, i64 room, i64 first)
      : values(static_cast<T*>(memory) + first),
        bins(reinterpret_cast<u16*>(static_cast<T*>(memory) + room) + first) {}
  DEVICE void put(u32 at, u32 bin, T x) const { values[at] = x, bins[at] = u16(bin); }
  DEVICE Four get(u32 at) const { return {load<4>(values + at), load<4>(bins + at)}; }
  DEVICE void set(u32 at, const Four& four) const {
    store<4>(values + at, four.values);
    store<4>(bins + at, four.bins);
  }
  static DEVICE u32 bin(const Four& four, int i) { return four.bins.get(i); }
  static DEVICE Acc<T> value(const Four& four, int i) { return four.values.get(i); }
};

// A block sorts a chunk. Each thread counts its elements of every part in a column of its own: no
// atomics, no conflicts, and the same time for any index. Elements out of range become zeros.
template <class T, class P, int V, bool FLAT, class I> struct Partition {
  static constexpr int RESIDENT = FLAT && sizeof(T) < 8 ? 4 : 2, EACH = CHUNK / SORTERS, VECTORS = EACH / V;
  static constexpr int BATCH = lesser(VECTORS, 8);
  static constexpr u32 WARPS = SORTERS / 32, SHIFT = PART_BITS<Acc<T>>, BAD = 1u << 31;

  struct Args {
    const T* values;
    const P* index;
    void* stage;
    u16* fours;         // [parts][row]: of each chunk
    Segment* segments;  // [parts][chunks]
    Report* listener;
    i64 extent, room;   // room: of the stage
    u32 ticket, parts, words, row;  // words: of a column, which has two parts in each
    u32 axis, beside;   // strides of the bins: along the axis, from element to element of a vector
    I items, pad;       // vectors in all
    Walk<FLAT, 3, I> walk;  // values, index, bins with the axis left out
  };

  // So that neither what one thread nor what many threads place side by side meets in few banks.
  static DEVICE u32 mixed(u32 at) { return at ^ (at >> 3 & 28); }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Staged<T> sorted(memory, CHUNK_ROOM, 0);
    u32* columns = memory + CHUNK_ROOM * Staged<T>::BYTES / 4;
    u32* column = columns + threadIdx.x;
    u32* totals = columns + args.words * SORTERS;  // [words][WARPS]
    u32* bases = totals + args.words * WARPS;
    u32* starts = bases + args.words;  // in fours
    ROLLED for (u32 w = 0; w < args.words; ++w) column[w * SORTERS] = 0;
    __syncwarp();
    // Which half of which word counts a bin's part.
    const auto counter = [&](u32 bin) {
      u32* word = column + (bin >> (SHIFT + 1)) * SORTERS;
      return reinterpret_cast<u16*>(word) + (bin >> SHIFT & 1);
    };
    // Of the j-th vector of a thread; one that is not there is at the place of another.
    const auto locate = [&](int j, I (&at)[3]) {
      const I item = I(blockIdx.x) * I(CHUNK / V) + I(j * SORTERS + threadIdx.x);
      args.walk.template offsets<V>(item < args.items ? item : args.items - 1, at);
      return item < args.items;
    };
    // Of each element: its bin, how many of the same part the thread has had, whether it is bad.
    u32 place[EACH], highest = 0;
    UNROLL for (int b = 0; b < VECTORS; b += BATCH) {
      Vec<P, V> index[BATCH];
      u32 base[BATCH];
      bool there[BATCH];
      UNROLL for (int d = 0; d < BATCH; ++d) {
        I at[3];
        there[d] = locate(b + d, at);
        index[d] = load<V>(args.index + at[1]);
        base[d] = FLAT ? 0 : u32(at[2]);
      }
      UNROLL for (int d = 0; d < BATCH; ++d) {
        UNROLL for (int v = 0; v < V; ++v) {
          const u32 i = narrowed(index[d].get(v));
          highest = highest > i ? highest : i;
          const bool good = i < u32(args.extent) && there[d];
          u32 bin = base[d] + i * args.axis;
          if (!FLAT) bin += v * args.beside;
          bin = good ? bin : 0;
          u16* count = counter(bin);
          const u32 before = *count;
          *count = u16(before + 1);
          place[(b + d) * V + v] = (good ? bin : BAD) | before << BIN_BITS;
        }
      }
    }
    // Under way while places are found.
    Vec<T, V> value[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; ++j) {
      I at[3];
      locate(j, at);
      value[j] = load<V>(args.values + at[0]);
    }
    // Counts to places: within the warp, then those of warps and parts.
    __syncwarp();
    for (u32 w = 0; w < args.words; ++w) {
      const u32 own = column[w * SORTERS];
      u32 sum = own;
      UNROLL for (u32 d = 1; d < 32; d *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      column[w * SORTERS] = sum - own;
      if (lane == 31) totals[w * WARPS + warp] = sum;
    }
    __syncthreads();
    if (warp == 0) {
      u32 sum = 0;
      if (lane < args.words) {
        ROLLED for (u32 i = 0; i < WARPS; ++i) {
          const u32 total = totals[lane * WARPS + i];
          totals[lane * WARPS + i] = sum;
          sum += total;
        }
      }
      const u32 count[2] = {sum & 0xffff, sum >> 16};
      const u32 first = (count[0] + 3) / 4, own = first + (count[1] + 3) / 4;
      u32 end = own;
      UNROLL for (u32 d = 1; d < 32; d *= 2) {
        const u32 other = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += other;
      }
      if (lane < args.words) {
        const u32 begin[3] = {end - own, end - own + first, end};
        bases[lane] = begin[0] * 4 | begin[1] << 18;
        starts[2 * lane] = begin[0];
        starts[2 * lane + 1] = begin[1];
        starts[2 * lane + 2] = begin[2];
        // Zeros fill up the last four of a part.
        UNROLL for (int half = 0; half < 2; ++half) {
          ROLLED for (u32 at = begin[half] * 4 + count[half]; at < begin[half + 1] * 4; ++at) {
            sorted.put(mixed(at), 0, T{});
          }
        }
      }
    }
    __syncthreads();
    for (u32 w = 0; w < args.words; ++w) {
      column[w * SORTERS] += totals[w * WARPS + warp] + bases[w];
    }
    __syncwarp();
    UNROLL for (int e = 0; e < EACH; ++e) {
      const u32 bin = place[e] & ((1 << BIN_BITS) - 1);
      const u32 at = *counter(bin) + (place[e] << 1 >> (BIN_BITS + 1));
      T x = value[e / V].get(e % V);
      if (place[e] & BAD) x = T{};
      sorted.put(mixed(at), bin & ((1 << SHIFT) - 1), x);
    }
    __syncthreads();
    const Staged<T> out(args.stage, args.room, i64(blockIdx.x) * CHUNK_ROOM);
    for (u32 part = warp; part < args.parts; part += WARPS) {
      const u32 begin = starts[part], fours = starts[part + 1] - begin;
      Range range;
      for (u32 i = lane; i < fours; i += 32) {
        const auto four = sorted.get(mixed((begin + i) * 4));
        out.set((begin + i) * 4, four);
        UNROLL for (int v = 0; v < 4; ++v) range.add(Bits<Acc<T>>::key(Staged<T>::value(four, v)));
      }
      range.most = __reduce_max_sync(~0u, range.most);
      range.less = __reduce_min_sync(~0u, range.less);
      if (lane == 0) {
        args.segments[part * gridDim.x + blockIdx.x] = {begin * 4, fours, range.most, range.less};
        args.fours[part * args.row + blockIdx.x] = u16(fours);
        // What follows the last chunk of a row.
        if (blockIdx.x == gridDim.x - 1) {
          ROLLED for (u32 c = gridDim.x; c < args.row; ++c) args.fours[part * args.row + c] = 0;
        }
      }
    }
    if (highest >= args.extent) look(args);
  }

  // Report what is out of range in the chunk. Out of line: no index is expected here.
  static __device__ __noinline__ void look(const Args& args) {
    ROLLED for (u32 i = threadIdx.x; i < CHUNK / V; i += SORTERS) {
      const I item = I(blockIdx.x) * I(CHUNK / V) + I(i);
      if (item >= args.items) return;
      I at[3];
      args.walk.template offsets<V>(item, at);
      ROLLED for (int v = 0; v < V; ++v) {
        valid(args.index[at[1] + v], args.extent, args.listener, args.ticket, i64(item) * V + v);
      }
    }
  }
};

}  // namespace baracuda
#endif
