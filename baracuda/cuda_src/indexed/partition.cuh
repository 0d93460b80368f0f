// Scatter of many elements to bins of which one block holds a part only, in three kernels. The
// elements of a chunk are sorted by parts of the bins; units of about as many elements of one part
// each are summed on chip, as integers that no order changes; the sums of units are joined.
//
// What is in a chunk, in a unit, and where a sum is rounded depends on the arrays alone, not on the
// device, on how wide accesses are or on the order of threads.
#pragma once
#include "bins.cuh"
#include "common/index.cuh"
#include "policy.cuh"
#include "common/report.cuh"
#include "tiles.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Elements of a chunk, its room where every part begins at a multiple of four; threads that sort
// it, of which each has few enough of them that a byte counts them.
constexpr u32 CHUNK = 4096, CHUNK_ROOM = CHUNK + 4 * 32, SORTERS = 256;
// While it is sorted, whoever reads past the last part reads what is behind it. What belongs
// nowhere is counted from there on, as a part of its own, and left out; low bits of 0
// count the first.
constexpr u32 NOWHERE = CHUNK + 256, SORT_ROOM = NOWHERE + 32;
// log2 of the bins of a part.
template <class A> constexpr u32 PART_BITS = sizeof(A) == 8 ? 12 : 13;

// The elements of a chunk that belong to a part, in fours of them, and the range of their keys.
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
  // From memory, for the last time.
  DEVICE Four fetch(u32 at) const { return load<PASSING, 4>(words + at); }
  DEVICE void set(u32 at, const Four& four) const { store<4>(words + at, four); }
  static DEVICE u32 bin(const Four& four, int i) { return four.get(i) >> 16; }
  static DEVICE Acc<T> value(const Four& four, int i) { return widened(four.get(i)); }
  // What is in the order of magnitudes, and the key of it.
  static DEVICE u32 rank(const Four& four, int i) { return four.get(i) & 0x7fff; }
  static DEVICE u32 key(u32 rank) { return Bits<f32>::key(widened(rank)); }
  static DEVICE f32 widened(u32 word) {
    const u16 bits = u16(word);
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
  DEVICE Four fetch(u32 at) const {
    return {load<PASSING, 4>(values + at), load<PASSING, 4>(bins + at)};
  }
  DEVICE void set(u32 at, const Four& four) const {
    store<4>(values + at, four.values);
    store<4>(bins + at, four.bins);
  }
  static DEVICE u32 bin(const Four& four, int i) { return four.bins.get(i); }
  static DEVICE Acc<T> value(const Four& four, int i) { return four.values.get(i); }
  static DEVICE u32 rank(const Four& four, int i) { return Bits<T>::key(four.values.get(i)); }
  static DEVICE u32 key(u32 rank) { return rank; }
};

// A block sorts a chunk. Each thread counts its elements of every part in a column of its own: no
// atomics, no conflicts, and the same time for any index. Elements out of range are left out.
template <class T, class P, int V, bool FLAT, class I> struct Partition {
  static constexpr int EACH = CHUNK / SORTERS, VECTORS = EACH / V;
  static constexpr int RESIDENT = FLAT && sizeof(T) < 8 ? 4 : 2;
  static constexpr u32 SHIFT = PART_BITS<Acc<T>>, LANES_OF_PART = 16;

  struct Args {
    const T* values;
    const P* index;
    void* stage;
    u16* fours;         // [parts][row]: of each chunk
    Segment* segments;  // [parts][chunks]
    Report* listener;
    i64 extent, room;   // room: of the stage
    u32 ticket, parts, row;
    u32 axis, beside;   // strides of the bins: along the axis, from element to element of a vector
    u32 pad;
    I items, last;      // vectors in all
    Walk<FLAT, 3, I> walk;  // values, index, bins with the axis left out
  };

  // So that neither what one thread nor what many threads place side by side meets in few banks.
  static DEVICE u32 mixed(u32 at) { return at ^ (at >> 3 & 28); }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Staged<T> sorted(memory, SORT_ROOM, 0);
    u32* counts = memory + SORT_ROOM * Staged<T>::BYTES / 4;  // [parts + 1][SORTERS]
    u32* totals = counts + (args.parts + 1) * SORTERS;         // of parts, and where they begin
    u32* starts = totals + args.parts;
    // In bytes, so that a count is one multiplication away.
    char* column = reinterpret_cast<char*>(counts + threadIdx.x);
    const auto count_of = [column](u32 part) -> u32& {
      return *reinterpret_cast<u32*>(column + part * (SORTERS * 4));
    };
    // Of the vectors of a thread: where values are, where bins begin. A vector that is not there is
    // out of range.
    const I first = I(blockIdx.x) * I(CHUNK / V) + I(threadIdx.x), left = args.items - first;
    const T* values = args.values + (FLAT ? first * V : 0);
    const P* indices = args.index + (FLAT ? first * V : 0);
    Vec<P, V> index[VECTORS];
    I from[VECTORS];
    u32 base[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; ++j) {
      I at[3] = {j * I(SORTERS * V), j * I(SORTERS * V), 0};
      UNROLL for (int v = 0; v < V; ++v) index[j].set(v, P(-1));
      if (j * I(SORTERS) >= left) continue;
      if (!FLAT) args.walk.template offsets<V>(first + j * I(SORTERS), at);
      index[j] = load<V>(indices + at[1]);
      from[j] = at[0];
      base[j] = u32(at[2]);
    }
    for (u32 i = threadIdx.x * 4; i < (args.parts + 1) * SORTERS; i += SORTERS * 4) {
      const u32 none = i < args.parts * SORTERS ? 0 : NOWHERE;
      store<4>(counts + i, Vec<u32, 4>{none, none, none, none});
    }
    // Of each element: its bin in its part, the part, and how many of that there were.
    u32 place[EACH], highest = 0;
    UNROLL for (int e = 0; e < EACH; ++e) {
      const P i = index[e / V].get(e % V);
      place[e] = u32(i) * args.axis;
      if (!FLAT) place[e] += base[e / V] + e % V * args.beside;
      // What belongs nowhere has a part of its own, behind all.
      if (typename Unsigned<P>::type(i) >= u32(args.extent)) place[e] = args.parts << SHIFT;
      highest = highest > place[e] ? highest : place[e];
    }
    __syncthreads();
    UNROLL for (int e = 0; e < EACH; ++e) {
      const u32 part = place[e] >> SHIFT;
      u32& count = count_of(part);
      place[e] += part * ((1 << 16) - (1 << SHIFT)) + (count << 24);
      ++count;
    }
    __syncthreads();
    // Under way while places are found.
    Vec<T, V> value[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; ++j) {
      if (j * I(SORTERS) < left) value[j] = load<V>(values + (FLAT ? j * I(SORTERS * V) : from[j]));
    }
    // Counts to places: a warp for each part, eight threads' counts for each lane.
    constexpr u32 HALF = SORTERS / 2, WARPS = SORTERS / 32;
    ROLLED for (u32 part = warp; part < args.parts; part += WARPS) {
      u32* row = counts + part * SORTERS + lane * 4;
      Vec<u32, 4> many[2] = {load<4>(row), load<4>(row + HALF)};
      u32 sum = 0;
      UNROLL for (int i = 0; i < 8; ++i) sum += many[i / 4].get(i % 4);
      u32 before = sum_before(sum);
      if (lane == 31) totals[part] = before + sum;
      UNROLL for (int i = 0; i < 8; ++i) {
        const u32 own = many[i / 4].get(i % 4);
        many[i / 4].set(i % 4, before);
        before += own;
      }
      store<4>(row, many[0]);
      store<4>(row + HALF, many[1]);
    }
    __syncthreads();
    const u32 total = lane < args.parts ? totals[lane] : 0, fours = (total + 3) / 4;
    const u32 start = sum_before(fours);
    if (warp == 0 && lane < args.parts) {
      starts[lane] = start;
      starts[lane + 1] = start + fours;
      // Zeros fill up the last four.
      ROLLED for (u32 i = total; i < fours * 4; ++i) sorted.put(mixed(start * 4 + i), 0, T{});
    }
    ROLLED for (u32 part = warp; part < args.parts; part += WARPS) {
      const u32 begin = __shfl_sync(~0u, start, part) * 4;
      u32* row = counts + part * SORTERS + lane * 4;
      UNROLL for (u32 half = 0; half < SORTERS; half += HALF) {
        Vec<u32, 4> places = load<4>(row + half);
        UNROLL for (int i = 0; i < 4; ++i) places.set(i, places.get(i) + begin);
        store<4>(row + half, places);
      }
    }
    __syncthreads();
    UNROLL for (int e = 0; e < EACH; ++e) {
      const u32 part = place[e] >> 16 & 63;
      const u32 at = count_of(part) + (place[e] >> 24);
      if (part < args.parts) sorted.put(mixed(at), place[e] & 0xffff, value[e / V].get(e % V));
    }
    __syncthreads();
    write(args, sorted, starts);
    if (highest == args.parts << SHIFT) look(args);
  }

  // Half a warp for each part.
  static DEVICE void write(const Args& args, const Staged<T>& sorted, const u32* starts) {
    const Staged<T> out(args.stage, args.room, i64(blockIdx.x) * CHUNK_ROOM);
    const u32 lane = threadIdx.x % LANES_OF_PART, mask = 0xffffu << (threadIdx.x & 16);
    ROLLED for (u32 part = threadIdx.x / LANES_OF_PART; part < args.parts;
                part += SORTERS / LANES_OF_PART) {
      const u32 begin = starts[part], end = starts[part + 1];
      Range range;
      auto next = sorted.get(mixed((begin + lane) * 4));
      ROLLED for (u32 i = begin + lane; i < end; i += LANES_OF_PART) {
        const auto four = next;
        // Past the end of the part, but not past what is sorted.
        next = sorted.get(mixed((i + LANES_OF_PART) * 4));
        out.set(i * 4, four);
        UNROLL for (int v = 0; v < 4; ++v) range.add(Staged<T>::rank(four, v));
      }
      const u32 most = __reduce_max_sync(mask, range.most);
      u32 less = __reduce_min_sync(mask, range.less);
      if (lane) continue;
      if (less != ~0u) less = Staged<T>::key(less + 1) - 1;
      args.segments[part * gridDim.x + blockIdx.x] = {
          begin, end - begin, Staged<T>::key(most), less};
      args.fours[part * args.row + blockIdx.x] = u16(end - begin);
      // What follows the last chunk of a row.
      if (blockIdx.x < gridDim.x - 1) continue;
      ROLLED for (u32 c = gridDim.x; c < args.row; ++c) args.fours[part * args.row + c] = 0;
    }
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
