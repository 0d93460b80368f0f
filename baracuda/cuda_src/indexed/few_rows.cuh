// The distinct rows that an index names, ascending, and which of them each entry names.
//
// Entries mark their rows, a bit each, as no order changes that. Blocks then count the bits of
// their words, and number them: a row's number is how many bits there are before its own.
#pragma once
#include "common/reduce.cuh"
#include "invert_index.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <class P> struct NamedRows {
  static constexpr int RESIDENT = 4;

  struct Args {
    const P* index;
    u32* bits;
    const u32* before;  // of each word: bits before it
    P* numbers;         // of each entry: which of the distinct rows it names, -1 for none
    Report* listener;
    i64 extent, skipped;  // skipped: in range, and named by nobody; -1 for none
    i32 step;             // bytes from an entry to the next
    u32 items, ticket, pad;
  };
};

template <class P> struct MarkRows : NamedRows<P> {
  using Args = typename NamedRows<P>::Args;

  static DEVICE void run(const Args& args) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.items) return;
    const i64 row = *row_of(args.index, i, args.step);
    if (!valid(row, args.extent, args.listener, args.ticket, i64(i)) || row == args.skipped) return;
    atomicOr(args.bits + row / 32, 1u << (row & 31));
  }
};

template <class P> struct RenumberRows : NamedRows<P> {
  using Args = typename NamedRows<P>::Args;

  static DEVICE void run(const Args& args) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.items) return;
    const i64 row = *row_of(args.index, i, args.step);
    P number = -1;
    if (u64(row) < u64(args.extent) && row != args.skipped) {
      const u32 lower = args.bits[row / 32] & ((1u << (row & 31)) - 1);
      number = P(args.before[row / 32] + __popc(lower));
    }
    args.numbers[i] = number;
  }
};

// A block has `each` words of bits.
template <class O> struct MarkedRows {
  static constexpr int RESIDENT = 4;
  static constexpr u32 WARPS = 16;

  struct Args {
    const u32* bits;
    u32* counts;  // bits of each block
    u32* before;
    O* rows;
    i64 step, extent;  // step: elements from a row to the next
    u32 words, each;
    u32 many, pad;  // rows, of which those that are left over are `extent`
  };
};

template <class O> struct CountRows : MarkedRows<O> {
  using Args = typename MarkedRows<O>::Args;

  static DEVICE void run(const Args& args) {
    const u32 first = blockIdx.x * args.each, last = first + args.each;
    u32 many = 0;
    for (u32 w = first + threadIdx.x; w < last && w < args.words; w += blockDim.x) {
      many += __popc(args.bits[w]);
    }
    many = block_total(many);
    if (threadIdx.x == 0) args.counts[blockIdx.x] = many;
  }
};

template <class O> struct NumberRows : MarkedRows<O> {
  using Args = typename MarkedRows<O>::Args;
  static constexpr u32 WARPS = MarkedRows<O>::WARPS;

  static DEVICE void run(const Args& args) {
    __shared__ u32 sums[16];
    u32 base = 0, all = 0;
    for (u32 b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
      const u32 count = args.counts[b];
      base += b < blockIdx.x ? count : 0;
      all += count;
    }
    base = block_scan<WARPS>(base, sums).all;
    all = block_scan<WARPS>(all, sums).all;
    const u32 begin = blockIdx.x * args.each;
    const u32 end = begin + args.each < args.words ? begin + args.each : args.words;
    ROLLED for (u32 first = begin; first < end; first += blockDim.x) {
      const u32 w = first + threadIdx.x;
      u32 word = w < end ? args.bits[w] : 0;
      const Scan scan = block_scan<WARPS>(__popc(word), sums);
      u32 at = base + scan.before;
      if (w < end) args.before[w] = at;
      ROLLED for (; word; word &= word - 1) {
        args.rows[i64(at++) * args.step] = O(i64(w) * 32 + __ffs(int(word)) - 1);
      }
      base += scan.all;
    }
    const u32 every = gridDim.x * blockDim.x;
    for (u32 i = all + blockIdx.x * blockDim.x + threadIdx.x; i < args.many; i += every) {
      args.rows[i64(i) * args.step] = O(args.extent);
    }
  }
};

}  // namespace baracuda
#endif
