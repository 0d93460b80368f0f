// Lists schedule: an elementwise functor over any number of arrays in one launch.
//
// A table in device memory has a row for each set of arrays: the addresses of the inputs and
// outputs, then their number of elements and, where elements are NUMBERED, the place of the set in
// the lists. `map` words behind the first row stands, for each chunk of at most `elements`
// elements, its row (low half) and its place in that row (high half). A block takes one chunk, or
// every gridDim.x-th one. Where a functor, readied, is `idle`, its output has the value of its
// first input: chunks in place are left alone.
#pragma once
#include "elementwise.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <class F> DEVICE auto idle(const F& f, int) -> decltype(f.idle()) { return f.idle(); }
template <class F> DEVICE bool idle(const F&, long) { return false; }

struct Table {
  const u64* table;
};

template <template <class> class F, class T, int V, int WIDE = 0, bool NUMBERED = false>
struct Lists {
  using One = Elementwise<F, T, V, 1, 1, i32, 0, 0, WIDE, NUMBERED>;
  using A = Acc<T>;
  using Functor = F<A>;
  static constexpr int IN = Functor::inputs, OUT = Functor::outputs, ALL = IN + OUT;
  static constexpr int ROW = ALL + 1 + NUMBERED;
  // Addresses of eight arrays beside their vectors do not fit 64 registers, nor do random words.
  static constexpr int RESIDENT = ALL > 7 || NUMBERED ? lesser(One::RESIDENT, 6) : One::RESIDENT;

  struct Args : Table, Functor {
    i64 map;
    i32 chunks, elements;
  };

  // The elements `from` to `to` of a chunk, N at a time.
  template <int N, class G>
  static DEVICE void step(
      const typename One::Args& own, const G& f, i32 from, i32 to, u64 base, u64 place) {
    for (i32 i = from + i32(threadIdx.x) * N; i < to; i += i32(blockDim.x) * N) {
      i32 at[One::ALL];
      UNROLL for (int k = 0; k < One::ALL; ++k) at[k] = i;
      typename One::template Batch<N> batch;
      One::template fetch<N>(own, at, batch);
      One::template finish<N>(own, f, at, batch, base, place);
    }
  }

  static DEVICE void run(const Args& args) {
    const auto& f = readied<Functor>(args, 0);
    const u64* const map = args.table + args.map;
    ROLLED for (i32 chunk = blockIdx.x; chunk < args.chunks; chunk += gridDim.x) {
      const u64 place = map[chunk];
      const u64* const row = args.table + i64(u32(place)) * ROW;
      if (OUT == 1 && idle(f, 0) && row[0] == row[IN]) continue;
      const i64 begin = i64(place >> 32) * args.elements, left = i64(row[ALL]) - begin;
      const i32 count = left < args.elements ? i32(left) : args.elements;
      typename One::Args own;
      u64 bits = 0;
      UNROLL for (int k = 0; k < ALL; ++k) {
        const u64 address = row[k] + begin * (One::wide(k) ? sizeof(A) : sizeof(T));
        bits |= address;
        if (k < IN) own.in[k] = reinterpret_cast<const T*>(address);
        else own.out[k - IN] = reinterpret_cast<T*>(address);
      }
      // All threads of a block go one way: the addresses are those of the whole chunk.
      const i32 whole = bits % (sizeof(T) * V) == 0 ? count - count % V : 0;
      const u64 stream = NUMBERED ? row[ROW - 1] : 0;
      step<V>(own, f, 0, whole, u64(begin), stream);
      step<1>(own, f, whole, count, u64(begin), stream);
    }
  }
};

}  // namespace baracuda
#endif
