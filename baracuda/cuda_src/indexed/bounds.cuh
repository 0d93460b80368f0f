// The inverse of an index that ascends, as it was given or as it was SORTED: every list is a
// stretch of the elements, whose ends a binary search finds. An index that does not ascend gives
// wrong lists, but no wrong address: the search for a larger row never ends before that for a
// smaller one.
#pragma once
#include "index_lists.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <class P, bool SORTED> struct Bounds {
  static constexpr int RESIDENT = 4;

  struct Args : Lists {
    const P* index;
    Dealt dealt;
    Report* listener;
    i32 step;  // bytes from an element to the next
    u32 ticket, pieces, counters, columns, pad;
  };

  static DEVICE P at(const Args& args, u32 k) { return *row_of(args.index, k, args.step); }

  // The first element of a row or of a later one.
  static DEVICE u32 begin(const Args& args, i64 row) {
    u32 low = 0, high = args.dealt.length;
    ROLLED while (low < high) {
      const u32 middle = low + (high - low) / 2;
      const bool before = at(args, middle) < row;
      low = before ? middle + 1 : low;
      high = before ? high : middle;
    }
    return low;
  }

  // The row of an element, if its list is long.
  static DEVICE u32 edge(const Args& args, u32 k) {
    if (k >= args.dealt.length) return NONE;
    const i64 row = at(args, k);
    if (u64(row) >= args.dealt.rows) return NONE;
    const u32 first = begin(args, row), end = begin(args, row + 1);
    return first <= k && k < end && end - first > PART ? u32(row) : NONE;
  }

  static DEVICE void run(const Args& args) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, rows = args.dealt.rows;
    // Slots behind the last row are empty.
    if (i <= args.dealt.slots) args.offsets[i] = begin(args, i < rows ? i : rows);
    if (i < args.counters) args.done[i] = 0;
    if (!SORTED && i < args.dealt.length) {
      args.order[i] = i;
      valid(at(args, i), rows, args.listener, args.ticket, i64(i) * args.columns);
    }
    if (i < args.pieces) {
      args.edges[2 * i] = edge(args, i * PART);
      args.edges[2 * i + 1] = edge(args, i * PART + PART - 1);
    }
  }
};

}  // namespace baracuda
#endif
