// What a block of an on-chip schedule works on: a tile of lanes, each with its own bins.
//
// ALONG the last axis a lane is a row, and elements and bins of a row lie side by side; ALONE it is
// the only row of its tile. ACROSS the axis lanes are neighbouring columns: the elements of a line,
// one from each column, lie side by side, and so do the same bins of all lanes.
#pragma once
#include "common/index.cuh"
#include "common/report.cuh"
#include "common/vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

enum Direction { ALONE, ALONG, ACROSS };

// Operands are values, index, and the array with the bins. A slice is the part of the bins that a
// tile holds at once: blockIdx.x counts tiles, blockIdx.y slices.
template <class X, class P, class B, class I> struct TileArgs {
  using Index = P;
  X* values;
  const P* index;
  B* bins;
  Report* listener;
  i64 extent;  // bins of a lane in all
  u32 ticket, lanes, slice, room;  // room: bins of a tile, and what belongs nowhere
  Extent<u32> elements, whole;  // vectors per row or line: of the elements, of the bins
  I length, count;              // elements of a lane; lanes in all (ACROSS: of an outer item)
  I steps[3], beside;           // ACROSS: strides along the axis; index: from lane to lane
  Extent<typename Unsigned<I>::type> groups;  // ACROSS: tiles per outer item
  typename Unsigned<I>::type pitch;           // ACROSS: from one line of bins to the next, on chip
  Walk<0, 3, I> walk;  // rows, or outer items
};

// An index, where all that is out of range of 32 bits is the largest number.
template <class P> DEVICE u32 narrowed(P i) {
  return sizeof(P) == 8 && u64(i64(i)) >> 32 ? ~0u : u32(i);
}

// Of numbers, one for each lane: the sum of those before this one's.
DEVICE u32 sum_before(u32 x) {
  u32 sum = x;
  UNROLL for (u32 d = 1; d < 32; d *= 2) {
    const u32 other = __shfl_up_sync(~0u, sum, d);
    if ((threadIdx.x & 31) >= d) sum += other;
  }
  return sum - x;
}

template <Direction D, class Args, class I> struct Tile {
  using U = typename Unsigned<I>::type;
  // Whether the bins of a lane lie so.
  static constexpr bool SIDE_BY_SIDE = D != ACROSS;
  static constexpr u32 FRONT = 0;
  const Args& args;
  I first, base[3], outer;  // first: lane
  u32 lanes, low, bins;     // those that are there; of the slice
  u32 slice;                // bins for which a lane has room
  u32 end;                  // vectors of elements

  DEVICE Tile(const Args& args) : args(args), outer(0) {
    if constexpr (D == ACROSS) {
      outer = I(args.groups.divide(U(blockIdx.x)));
      first = I(blockIdx.x - outer * I(args.groups.size)) * I(args.lanes);
      args.walk.template offsets<1>(outer, base);
      base[0] += first;
      base[1] += first * args.beside;
      base[2] += first;
    } else {
      first = I(blockIdx.x) * I(args.lanes);
      if constexpr (D == ALONE) args.walk.template offsets<1>(first, base);
    }
    const I left = args.count - first;
    lanes = left < I(args.lanes) ? u32(left) : args.lanes;
    low = blockIdx.y * args.slice;
    const i64 rest = args.extent - low;
    bins = rest < args.slice ? u32(rest) : args.slice;
    slice = args.slice;
    end = (D == ACROSS ? u32(args.length) : lanes) * args.elements.size;
  }

  // As many bins of a lane as fit into `room`; the tile with those from `begin` on.
  DEVICE u32 most(u32 room) const {
    const u32 each = D == ACROSS ? room / u32(args.pitch) : room / (D == ALONE ? 1 : lanes);
    return D == ACROSS ? each - 1 : each / 4 * 4 - 4;
  }
  DEVICE Tile part_of(u32 begin, u32 size) const {
    Tile part = *this;
    part.low = low + begin;
    part.bins = bins - begin < size ? bins - begin : size;
    part.slice = size;
    return part;
  }

  // Where the i-th vector of elements is. One that is not there is at the place of another.
  struct Place {
    I values, index;
    i64 position;
    u32 lane;
    bool there;
  };
  template <int V> DEVICE Place element(u32 i) const {
    Place place;
    place.there = i < end;
    i = i < end ? i : end - 1;
    if constexpr (D == ALONE) {
      place.values = base[0] + I(i) * V;
      place.index = base[1] + I(i) * V;
      place.position = i64(first) * args.length + i64(i) * V;
      place.lane = 0;
      return place;
    }
    const u32 line = args.elements.divide(i);
    u32 at = (i - line * args.elements.size) * V;
    if constexpr (D == ACROSS) {
      place.there &= at < lanes;
      at = at < lanes ? at : 0;
      place.values = base[0] + I(line) * args.steps[0] + I(at);
      place.index = base[1] + I(line) * args.steps[1] + I(at) * args.beside;
      place.position = (i64(outer) * args.length + line) * args.count + first + at;
      place.lane = at;
    } else {
      I row[3];
      args.walk.template offsets<1>(first + I(line), row);
      place.values = row[0] + I(at);
      place.index = row[1] + I(at);
      place.position = i64(first + I(line)) * args.length + at;
      place.lane = line;
    }
    return place;
  }

  // Vectors of bins; where the i-th is in the array and in the tile; whether it is there.
  DEVICE u32 held() const { return (D == ACROSS ? bins : lanes) * args.whole.size; }
  template <int V> DEVICE bool whole(u32 i, I& offset, u32& bin) const {
    if constexpr (D == ALONE) {
      bin = i * V;
      offset = base[2] + I(low) + I(i) * V;
      return i * V < bins;
    }
    const u32 line = args.whole.divide(i), at = (i - line * args.whole.size) * V;
    if constexpr (D == ACROSS) {
      bin = line * u32(args.pitch) + at;
      offset = base[2] + I(low + line) * args.steps[2] + I(at);
      return at < lanes;
    } else {
      I row[3];
      args.walk.template offsets<1>(first + I(line), row);
      bin = line * (slice + 4) + at;
      offset = row[2] + I(low) + I(at);
      return at < bins;
    }
  }

  template <int V, int XI, class P>
  DEVICE void indices(const Place& place, Vec<P, V>& index) const {
    UNROLL for (int v = 0; v < V; v += XI) {
      Vec<P, XI> part = load<XI>(args.index + place.index + v * (D == ACROSS ? args.beside : 1));
      paste(index, v, part);
    }
  }

  // Where the bin behind the last of a lane is.
  DEVICE u32 behind(u32 lane) const {
    if constexpr (D == ACROSS) return bins * u32(args.pitch) + lane;
    return D == ALONG ? lane * (slice + 4) + bins : bins;
  }

  // The bins that a vector of indices means, the one behind the last of a lane for what has none
  // here. `highest` becomes the largest index.
  template <int V, class P>
  DEVICE void bins_of(const Vec<P, V>& index, u32 lane, u32& highest, u32 (&bin)[V]) const {
    UNROLL for (int v = 0; v < V; ++v) {
      const u32 i = narrowed(index.get(v)), local = i - low;
      highest = highest > i ? highest : i;
      bin[v] = local < bins ? local : bins;
      if constexpr (D == ACROSS) bin[v] = bin[v] * u32(args.pitch) + lane + v;
      if constexpr (D == ALONG) bin[v] += lane * (slice + 4);
    }
  }

};

// Report what is out of range among the indices of a block's tile. Out of line and on its own: no
// index is expected here.
template <Direction D, int V, class I, class Args>
__device__ __noinline__ void look(const Args& args) {
  const Tile<D, Args, I> tile(args);
  ROLLED for (u32 i = threadIdx.x; i < tile.end; i += blockDim.x) {
    const auto place = tile.template element<V>(i);
    if (!place.there) continue;
    ROLLED for (int v = 0; v < V; ++v) {
      const I at = place.index + v * (D == ACROSS ? args.beside : 1);
      valid(args.index[at], args.extent, args.listener, args.ticket, place.position + v);
    }
  }
}

}  // namespace baracuda
#endif
