// Rows of a table joined bag by bag, as in an embedding of bags, and what their gradients need.
//
// A thread takes a unit of 16 bytes of a bag's row and goes over the entries of the bag in their
// order, so that no order of a sum depends on anything else.
#pragma once
#include "combine.cuh"
#include "permute.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Entries of a bag are numbered from `begin` to `end`: along the second axis of the ids, or, with
// offsets, along the one that they have.
struct Bags {
  const void* ids;
  const void* offsets;
};
struct BagSizes {
  Entries of_ids, of_weights;  // strides from a bag to the next, and from an entry to the next
  i64 step, extent, skipped;   // step: of offsets; skipped: an id that is in no bag, or -1
  u32 bags, entries;           // entries: of a bag, or in all
  u32 apart, wide_ids, wide_offsets, columns;  // apart: whether there are offsets

  DEVICE u32 edge(const Bags& at, u32 bag) const {
    if (bag == 0) return 0;
    if (bag >= bags) return entries;
    const i64 offset = entry_of(at.offsets, bag * step, wide_offsets);
    return offset < 0 ? 0 : offset < i64(entries) ? u32(offset) : entries;
  }
  DEVICE u32 begin(const Bags& at, u32 bag) const { return apart ? edge(at, bag) : 0; }
  DEVICE u32 end(const Bags& at, u32 bag) const { return apart ? edge(at, bag + 1) : entries; }
  // The bag of an entry: the last one that begins with it or before.
  DEVICE u32 bag(const Bags& at, u32 entry) const {
    if (!apart) return entry / entries;
    u32 low = 0, high = bags;
    ROLLED while (high - low > 1) {
      const u32 middle = low + (high - low) / 2;
      const bool before = edge(at, middle) <= entry;
      low = before ? middle : low;
      high = before ? high : middle;
    }
    return low;
  }
  DEVICE i64 id(const Bags& at, u32 bag, u32 entry) const {
    return entry_of(at.ids, of_ids.at(bag, entry), wide_ids);
  }
  DEVICE bool counts(i64 id) const { return u64(id) < u64(extent) && id != skipped; }
  // The number of an entry among all.
  DEVICE i64 number(u32 bag, u32 entry) const {
    return apart ? i64(entry) : i64(bag) * entries + entry;
  }
};

// Each bag: its rows joined by F, each times its weight where WEIGHTED; 0 where it has none.
template <class T, class O, int N, bool WEIGHTED, class F> struct SumBags {
  static constexpr int V = 16 / sizeof(T), MANY = 4, RESIDENT = 2;
  using A = Acc<T>;

  struct Args : Bags {
    const T* rows;
    const T* weights;
    O* out;
    Report* listener;
    BagSizes sizes;
    u32 ticket, items;   // items: units of all bags
    Extent<u32> across;  // units of a row, to divide by
    u32 pad;
  };

  static DEVICE void run(const Args& args) {
    const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= args.items) return;
    const BagSizes& sizes = args.sizes;
    const u32 bag = args.across.divide(item), unit = item - bag * args.across.size;
    const u32 end = sizes.end(args, bag);
    bool strange = false;
    A x[V];
    UNROLL for (int v = 0; v < V; ++v) x[v] = F::template none<A>();
    u32 many = 0;
    ROLLED for (u32 first = sizes.begin(args, bag); first < end; first += MANY) {
      i64 row[MANY];
      Vec<T, V> value[MANY];
      A weight[MANY];
      bool there[MANY];
      // The last entry again where there are fewer: no branch lies between two loads.
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        const u32 entry = lesser(first + j, end - 1);
        row[j] = sizes.id(args, bag, entry);
        if constexpr (WEIGHTED) weight[j] = widen(args.weights[sizes.of_weights.at(bag, entry)]);
      }
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        there[j] = first + j < end && sizes.counts(row[j]);
        strange |= !within(row[j], sizes.extent);
        if (there[j]) value[j] = unit_of<N, V>(args.rows, row[j], unit * V, sizes.columns);
      }
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        if (!there[j]) continue;
        ++many;
        UNROLL for (int v = 0; v < V; ++v) {
          const A y = widen(value[j], v);
          if constexpr (WEIGHTED) x[v] = fused(y, weight[j], x[v]);
          else x[v] = F::join(x[v], y);
        }
      }
    }
    if (many) {
      F{}.finish(x, many);
    } else {
      UNROLL for (int v = 0; v < V; ++v) x[v] = 0;
    }
    keep_unit<N>(args.out, bag, unit * V, sizes.columns, x);
    if (strange && !unit && args.listener) refuse(args, bag);
  }

  static DEVICE void refuse(const Args& args, u32 bag) {
    const BagSizes& sizes = args.sizes;
    ROLLED for (u32 e = sizes.begin(args, bag); e < sizes.end(args, bag); ++e) {
      const i64 row = sizes.id(args, bag, e), number = sizes.number(bag, e);
      valid(row, sizes.extent, args.listener, args.ticket, number);
    }
  }
};

// The share of each entry in the gradient of its bag, a row of its own: all of it, times its weight
// where WEIGHTED; or divided by those that are the maximum there. Divided by how many there are, it
// is the same for all, and the row is the bag's.
enum Sharing { SHARE_ALL, SHARE_EVENLY, SHARE_TIES };

template <class T, class O, int N, bool WEIGHTED, Sharing S> struct ShareBags {
  static constexpr int V = 16 / sizeof(T), RESIDENT = 2;
  using A = Acc<T>;

  struct Args : Bags {
    const T* dy;
    const T* rows;
    const T* y;
    const T* weights;
    O* out;
    BagSizes sizes;
    u32 items, pad;
    Extent<u32> across;
  };

  static DEVICE void run(const Args& args) {
    const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= args.items) return;
    const BagSizes& sizes = args.sizes;
    const u32 bag = args.across.divide(item), column = (item - bag * args.across.size) * V;
    const u32 begin = sizes.begin(args, bag), end = sizes.end(args, bag);
    A dy[V], y[V] = {}, many[V] = {};
    widen(unit_of<N, V>(args.dy, bag, column, sizes.columns), dy);
    if constexpr (S == SHARE_TIES) widen(unit_of<N, V>(args.y, bag, column, sizes.columns), y);
    ROLLED for (u32 e = begin; e < end && S != SHARE_ALL; ++e) {
      const i64 row = sizes.id(args, bag, e);
      if (!sizes.counts(row)) continue;
      A own[V] = {};
      if constexpr (S == SHARE_TIES) {
        widen(unit_of<N, V>(args.rows, row, column, sizes.columns), own);
      }
      UNROLL for (int v = 0; v < V; ++v) many[v] += alike(own[v], y[v]) ? A(1) : A(0);
    }
    if constexpr (S == SHARE_EVENLY) {
      UNROLL for (int v = 0; v < V; ++v) dy[v] /= many[v];
      keep_unit<N>(args.out, bag, column, sizes.columns, dy);
      return;
    }
    ROLLED for (u32 e = begin; e < end; ++e) {
      const i64 row = sizes.id(args, bag, e);
      if (!sizes.counts(row)) continue;
      A own[V] = {}, share[V], weight = 1;
      if constexpr (WEIGHTED) weight = widen(args.weights[sizes.of_weights.at(bag, e)]);
      if constexpr (S == SHARE_TIES) {
        widen(unit_of<N, V>(args.rows, row, column, sizes.columns), own);
      }
      UNROLL for (int v = 0; v < V; ++v) {
        share[v] = WEIGHTED ? dy[v] * weight : dy[v];
        if constexpr (S != SHARE_ALL) share[v] = alike(own[v], y[v]) ? dy[v] / many[v] : A(0);
      }
      keep_unit<N>(args.out, sizes.number(bag, e), column, sizes.columns, share);
    }
  }
};

// Lists of entries become lists of their bags, where entries of a bag have the same share.
struct BagsOfEntries {
  static constexpr int RESIDENT = 4;

  struct Args : Bags {
    u32* order;
    const u32* ends;  // of lists, the last of which is that of all
    BagSizes sizes;
    u32 all, pad;
  };

  static DEVICE void run(const Args& args) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.ends[args.all]) args.order[i] = args.sizes.bag(args, args.order[i]);
  }
};

// The gradient of each weight: the product of its row and of the gradient of its bag. A warp has a
// bag.
template <class T, int N, bool ADD> struct DotBags {
  static constexpr int V = 16 / sizeof(T), RESIDENT = 2;
  using A = Acc<T>;

  struct Args : Bags {
    const T* dy;
    const T* rows;
    T* out;
    BagSizes sizes;
    Entries of_out;
  };

  static DEVICE void run(const Args& args) {
    const BagSizes& sizes = args.sizes;
    const u32 lane = threadIdx.x & 31, bag = blockIdx.x * (blockDim.x / LANES) + warp_of_block();
    if (bag >= sizes.bags) return;
    const u32 end = sizes.end(args, bag);
    ROLLED for (u32 e = sizes.begin(args, bag); e < end; ++e) {
      const i64 row = sizes.id(args, bag, e);
      A sum[1] = {};
      for (u32 at = lane * V; at < sizes.columns && sizes.counts(row); at += LANES * V) {
        const auto x = unit_of<N, V>(args.dy, bag, at, sizes.columns);
        const auto y = unit_of<N, V>(args.rows, row, at, sizes.columns);
        UNROLL for (int v = 0; v < V; ++v) sum[0] = fused(widen(x, v), widen(y, v), sum[0]);
      }
      UNROLL for (int d = 16; d; d /= 2) sum[0] += __shfl_xor_sync(~0u, sum[0], d);
      if (lane == 0) put<ADD>(args.out + args.of_out.at(bag, e), sum);
    }
  }
};

}  // namespace baracuda
#endif
