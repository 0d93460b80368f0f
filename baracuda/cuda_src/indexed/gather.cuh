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
  static constexpr int RESIDENT = 4, ASKED = SHARED ? 1 : V;

  // The fields of F are run-time values, which stand behind the pointers.
  struct Args : GatherArrays<T, P>, F {
    Report* listener;
    i64 extent;
    u32 ticket, pad;
    I items, axis, step_src, step_index;  // strides along the axis, and from unit to unit
    Walk<0, 3, I> walk;                   // src with the axis left out, index, out
  };

  static DEVICE void run(const Args& args) {
    // A warp has a run of vectors.
    const I thread = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x), lane = thread & 31;
    const I first = (thread - lane) * DEPTH + lane;
    I item[DEPTH], at[DEPTH][3];
    Vec<P, ASKED> index[DEPTH];
    Vec<T, V> out[DEPTH];
    // Indices are under way together, then elements: no branch lies between two loads.
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      item[d] = lesser(first + d * 32, args.items - 1);
      args.walk.template offsets<1>(item[d], at[d]);
      UNROLL for (int v = 0; v < ASKED; v += XI) {
        Vec<P, XI> part = load<XI>(args.index + at[d][1] + v * args.step_index);
        paste(index[d], v, part);
      }
    }
    bool inside = true;
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      UNROLL for (int v = 0; v < ASKED; ++v) {
        const P i = index[d].get(v);
        const bool known = within(i, args.extent);
        const T* src = args.src + at[d][0] + I(i) * args.axis;
        if constexpr (SHARED) out[d] = known ? load<V>(src) : Vec<T, V>{};
        else out[d].set(v, known ? src[v * args.step_src] : T{});
        inside &= known;
      }
    }
    if (!inside) refuse(args, item, index);
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      if (first + d * 32 >= args.items) return;
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

  static DEVICE void refuse(const Args& args, const I (&item)[DEPTH],
                            const Vec<P, ASKED> (&index)[DEPTH]) {
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      UNROLL for (int v = 0; v < ASKED; ++v) {
        valid(index[d].get(v), args.extent, args.listener, args.ticket, i64(item[d]) * V + v);
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
