// Gather schedule: elements are moved as units of their size to where an index says.
//
// A thread fills V units that lie side by side in the output. When SHARED they have one index in
// common (an index broadcast along trailing axes) and are one vector of the source as well; else
// each has its own, read XI at a time. F is what becomes of an element on its way,
// and ADD adds it to what the output holds.
#pragma once
#include "tiles.cuh"
#ifdef __CUDACC__

namespace baracuda {

struct Unchanged {
  template <class T, int N> DEVICE void apply(Vec<T, N>&) const {}
};

template <class T, class P> struct GatherArrays {
  const T* src;
  const P* index;
  T* out;
};

template <class T, class P, bool SHARED, int V, int XI, int DEPTH, class I, class F = Unchanged,
          bool ADD = false>
struct Gather {
  static constexpr int RESIDENT = 4;

  // The fields of F are run-time values, which stand behind the pointers.
  struct Args : GatherArrays<T, P>, F {
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I items, axis, step_src, step_index;  // strides along the axis, and from unit to unit
    Walk<0, 3, I> walk;                   // src with the axis left out, index, out
  };

  static DEVICE void run(const Args& args) {
    const I first = I(blockIdx.x) * I(blockDim.x * DEPTH) + I(threadIdx.x);
    Vec<T, V> out[DEPTH];
    I at[DEPTH][3];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I item = first + d * I(blockDim.x);
      if (item < args.items) {
        args.walk.template offsets<1>(item, at[d]);
        fetch(args, item, at[d], out[d]);
      }
    }
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * I(blockDim.x) >= args.items) return;
      args.apply(out[d]);
      if constexpr (ADD) {
        Acc<T> x[V];
        widen(out[d], x);
        put<ADD>(args.out + at[d][2], x);
      } else {
        store<V>(args.out + at[d][2], out[d]);
      }
    }
  }

  static DEVICE void fetch(const Args& args, I item, const I (&at)[3], Vec<T, V>& out) {
    const i64 position = i64(item) * V;
    const T* src = args.src + at[0];
    if constexpr (SHARED) {
      const P i = args.index[at[1]];
      out = valid(i, args.extent, args.listener, args.ticket, position)
                ? load<V>(src + I(i) * args.axis) : Vec<T, V>{};
    } else {
      Vec<P, V> index;
      UNROLL for (int v = 0; v < V; v += XI) {
        Vec<P, XI> part = load<XI>(args.index + at[1] + v * args.step_index);
        paste(index, v, part);
      }
      UNROLL for (int v = 0; v < V; ++v) {
        const P i = index.get(v);
        const bool inside = valid(i, args.extent, args.listener, args.ticket, position + v);
        out.set(v, inside ? src[I(i) * args.axis + v * args.step_src] : T{});
      }
    }
  }
};

// Elements in another layout; nothing where they are to stay in place.
template <class T, class I> struct Pack {
  static constexpr int RESIDENT = 4;

  struct Args {
    const T* from;
    T* to;
    I items, pad;
    Walk<0, 2, I> walk;
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items || args.from == args.to) return;
    I at[2];
    args.walk.template offsets<1>(item, at);
    args.to[at[1]] = args.from[at[0]];
  }
};

// On chip: a block reads the bins of a tile side by side and hands them out from shared memory, for
// problems that ask for most of them. Lanes and directions as in ScatterTiles; a thread has DEPTH
// vectors of V elements in flight, XI indices are read at a time, VO bins.
template <class T, class P, Direction D, int V, int XI, int VO, int DEPTH, class I>
struct GatherTiles {
  static constexpr int RESIDENT = D == ACROSS ? 1 : 2;

  using Args = TileArgs<T, P, const T, I>;
  using At = Tile<D, Args, I>;

  struct Asked {
    Vec<P, V> index[DEPTH];
    typename At::Place place[DEPTH];

    DEVICE void fetch(const At& tile, u32 i) {
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        place[d] = tile.template element<V>(i + d * blockDim.x);
        tile.template indices<V, XI>(place[d], index[d]);
      }
    }
  };

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) T cells[];
    const At tile(args);
    Asked asked;
    // The first indices come while the bins do.
    asked.fetch(tile, threadIdx.x);
    // What is asked for out of range is found behind the bins of a lane: 0.
    for (u32 lane = threadIdx.x; lane < args.lanes; lane += blockDim.x) {
      cells[tile.behind(lane)] = T{};
    }
    ROLLED for (u32 i = threadIdx.x; i < tile.held(); i += blockDim.x) {
      I offset;
      u32 bin;
      if (tile.template whole<VO>(i, offset, bin)) copy<VO>(cells + bin, args.bins + offset);
    }
    copied();
    __syncthreads();
    u32 highest = 0;
    ROLLED for (u32 i = threadIdx.x; i < tile.end; i += DEPTH * blockDim.x) {
      if (i >= DEPTH * blockDim.x) asked.fetch(tile, i);
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        u32 bin[V];
        tile.bins_of(asked.index[d], asked.place[d].lane, highest, bin);
        Vec<T, V> out;
        UNROLL for (int v = 0; v < V; ++v) out.set(v, cells[bin[v]]);
        if (asked.place[d].there) store<V>(args.values + asked.place[d].values, out);
      }
    }
    if (highest >= args.extent) look<D, V, I>(args);
  }
};

}  // namespace baracuda
#endif
