// Scatter of whole rows: one index for each row of values, as where embeddings get their gradient.
//
// The index is inverted first. Then each row is the sum of its list, written once: every order is
// fixed, so are the bits. A list longer than PART is summed in parts, cut where the position in all
// lists is a multiple of PART; who finishes last adds up the parts, in their order.
#pragma once
#include "invert_index.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <class T, class R> struct RowsArrays : Lists {
  const T* values;
  R* target;
  Acc<T>* parts;
};

// What becomes of the rows of a list, and of a list without any: a sum as it is.
struct Whole {
  static constexpr bool COUNTS = false;  // whether `finish` asks how many rows there were
  static constexpr bool TERMS = false;   // whether elements are not joined as they are
  static constexpr bool ZERO = true;     // whether nothing is 0
  template <class A> static DEVICE A none() { return 0; }
  template <class A> static DEVICE A join(A x, A y) { return x + y; }
  template <class A, int N> DEVICE void finish(A (&)[N], u32) const {}
};

// Joined are terms: what F makes of an element, of that in its place in another array of rows, and
// of what is known of the target's row. All are contiguous, and only what F takes is read.
template <class T, bool BESIDE, bool KNOWN> struct Terms : Whole {
  static constexpr bool TERMS = true;
  const T* beside;
  const T* known;

  template <int N> DEVICE Vec<T, N> other(i64 at) const {
    if constexpr (BESIDE) return load<N>(beside + at);
    return {};
  }
  template <int N> DEVICE void of_row(i64 at, Acc<T> (&x)[N]) const {
    if constexpr (KNOWN) widen(load<N>(known + at), x);
  }
};

// The fields of F are run-time values, which stand behind the pointers.
template <class T, class R, class F> struct RowsArgs : RowsArrays<T, R>, F {
  Dealt dealt;
  i32 step_values, step_target, step_parts;  // from a row to the next, in bytes
  u32 columns, chunks;      // elements of a row; warps side by side in it
  Extent<u32> across;       // `chunks`, to divide by
  u32 pieces, groups;       // chunks of positions; groups of slots
  u32 turn, pad;            // warps that take a chunk before the last of the groups
};

// A warp takes the short lists of ROWS slots: as one stream of elements, ONCE of them under way,
// whatever list they belong to. Some take a chunk of positions first, of it what belongs to long
// lists, in vectors of half the width: the few rows that are frequent must not be the last. R is
// the type of the sums in memory. F joins rows, and finishes what comes of it.
//
// BESIDE: rows so narrow that the lists of ROWS slots have lanes of their own, side by side.
template <class T, int V, int ROWS, int ONCE, bool ADD, bool BESIDE, class R = T, class F = Whole>
struct SumLists {
  static constexpr int RESIDENT = 8, HALF = greater(V / 2, 1), TWO = V / HALF, MANY = 8;
  static constexpr u32 SPAN = 16;
  static constexpr int STEP = lesser(HALF, 16 / int(sizeof(Acc<T>)));
  using A = Acc<T>;
  using Args = RowsArgs<T, R, F>;

  static DEVICE void run(const Args& args) {
    const u32 lane = threadIdx.x & 31;
    const u32 task = blockIdx.x * (blockDim.x / LANES) + warp_of_block();
    const u32 chunk = args.across.divide(task / TWO), beside = task - chunk * args.chunks * TWO;
    if (chunk < args.pieces && beside * LANES * HALF < args.columns) {
      of_chunk(args, chunk, beside, lane);
    }
    // Whoever had a chunk takes some of the last groups.
    const u32 all = args.groups * args.chunks, turned = task + (task < args.turn ? all : 0);
    const u32 group = args.across.divide(turned - args.turn);
    if (task < all && BESIDE) {
      of_narrow_rows(args, group, lane);
    } else if (task < all) {
      of_rows(args, group, ((turned - args.turn - group * args.chunks) * LANES + lane) * V, lane);
    }
  }

  template <int N> static DEVICE void clear(A (&x)[N]) {
    UNROLL for (int v = 0; v < N; ++v) x[v] = F::template none<A>();
  }
  // An element with what makes it a term.
  template <int N> struct Element {
    Vec<T, N> value, other;

    DEVICE void fetch(const Args& args, u32 k, u32 column) {
      value = load<N>(row_of(args.values, k, args.step_values) + column);
      if constexpr (F::TERMS) other = args.template other<N>(i64(k) * args.columns + column);
    }
    DEVICE void of(const A (&known)[N], A (&y)[N]) const {
      widen(value, y);
      if constexpr (F::TERMS) {
        A z[N];
        widen(other, z);
        UNROLL for (int v = 0; v < N; ++v) y[v] = F::term(y[v], z[v], known[v]);
      }
    }
  };
  template <int N>
  static DEVICE void know(const Args& args, u32 row, u32 column, A (&known)[N]) {
    if constexpr (F::TERMS) args.template of_row<N>(i64(row) * args.columns + column, known);
  }
  // The first of a list, or one more.
  template <int N>
  static DEVICE void add(A (&x)[N], const Element<N>& element, const A (&known)[N], bool first) {
    if (first) {
      element.of(known, x);
    } else {
      A y[N];
      element.of(known, y);
      UNROLL for (int v = 0; v < N; ++v) x[v] = F::join(x[v], y[v]);
    }
  }

  static DEVICE void of_rows(const Args& args, u32 group, u32 column, u32 lane) {
    const u32 team = group & ((1u << args.dealt.shift) - 1);
    // Slots far apart: of frequent rows, which often are neighbours, a warp has one.
    const u32 apart = args.groups >> args.dealt.shift;
    const u32 slot = (group >> args.dealt.shift) + lane * apart, row = args.dealt.row(team, slot);
    // Lanes behind a row read its beginning, and write nothing.
    const bool there = column < args.columns;
    if (!there) column = 0;
    u32 begin = 0, length = 0, elements = 0;
    if (lane < ROWS) {
      const u32* offsets = args.offsets + team * args.dealt.slots + slot;
      begin = offsets[0];
      length = offsets[1] - begin;
      elements = length > PART ? 0 : length;
    }
    A x[V];
    clear(x);
    u32 empty = __ballot_sync(~0u, !ADD && lane < ROWS && length == 0 && row < args.dealt.rows);
    ROLLED for (; empty; empty &= empty - 1) {
      const u32 to = __shfl_sync(~0u, row, __ffs(int(empty)) - 1);
      if (there) put_total<T, false>(row_of(args.target, to, args.step_target) + column, x);
    }
    // Where the short lists end in the stream; from there to their elements in `order`.
    u32 end = elements;
    UNROLL for (u32 d = 1; d < ROWS; d *= 2) {
      const u32 other = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end += other;
    }
    const u32 all = __shfl_sync(~0u, end, ROWS - 1), shift = begin + elements - end;
    bool fresh = true;
    A known[V] = {};
    ROLLED for (u32 window = 0; window < all; window += LANES) {
      // Of a lane's element: its list, and whether it is the last of it.
      const u32 at = window + lane;
      u32 list = 0;
      UNROLL for (u32 r = 0; r < ROWS - 1; ++r) list += at >= __shfl_sync(~0u, end, r);
      const u32 from = at + __shfl_sync(~0u, shift, list), to = __shfl_sync(~0u, row, list);
      const u32 element = at < all ? args.order[from] : NONE;
      const u32 many = F::COUNTS ? __shfl_sync(~0u, length, list) : 0;
      const u32 lasts = __ballot_sync(~0u, at + 1 == __shfl_sync(~0u, end, list));
      const u32 here = lesser(all - window, LANES);
      ROLLED for (u32 i = 0; i < here; i += ONCE) {
        // The last one again where there are fewer: a load under a condition is waited for at once.
        Element<V> taken[ONCE];
        UNROLL for (int j = 0; j < ONCE; ++j) {
          const u32 k = __shfl_sync(~0u, element, lesser(i + j, here - 1));
          taken[j].fetch(args, k, column);
        }
        UNROLL for (int j = 0; j < ONCE; ++j) {
          if (i + j >= here) break;
          if (F::TERMS && fresh) know(args, __shfl_sync(~0u, to, i + j), column, known);
          add(x, taken[j], known, fresh);
          fresh = lasts >> (i + j) & 1;
          if (!fresh) continue;
          R* target = row_of(args.target, __shfl_sync(~0u, to, i + j), args.step_target);
          args.finish(x, F::COUNTS ? __shfl_sync(~0u, many, i + j) : 0);
          if (there) put_total<T, ADD>(target + column, x);
        }
      }
    }
  }

  static DEVICE void of_narrow_rows(const Args& args, u32 group, u32 lane) {
    constexpr u32 OWN = LANES / ROWS;
    const u32 team = group & ((1u << args.dealt.shift) - 1);
    const u32 apart = args.groups >> args.dealt.shift;
    const u32 slot = (group >> args.dealt.shift) + lane / OWN * apart;
    const u32 row = args.dealt.row(team, slot), column = lane % OWN * V;
    const u32* offsets = args.offsets + team * args.dealt.slots + slot;
    const u32 begin = offsets[0], length = offsets[1] - begin;
    if (column >= args.columns || row >= args.dealt.rows || length > PART) return;
    A x[V], known[V] = {};
    clear(x);
    if (length) know(args, row, column, known);
    ROLLED for (u32 i = 0; i < length; i += ONCE) {
      u32 element[ONCE];
      Element<V> taken[ONCE];
      UNROLL for (int j = 0; j < ONCE; ++j) {
        element[j] = args.order[begin + lesser(i + j, length - 1)];
      }
      UNROLL for (int j = 0; j < ONCE; ++j) taken[j].fetch(args, element[j], column);
      UNROLL for (int j = 0; j < ONCE; ++j) {
        if (i + j < length) add(x, taken[j], known, i + j == 0);
      }
    }
    if (length) args.finish(x, length);
    if (length || !ADD) put_total<T, ADD>(row_of(args.target, row, args.step_target) + column, x);
  }

  static DEVICE void of_chunk(const Args& args, u32 chunk, u32 beside, u32 lane) {
    const u32 low = chunk * PART, all = args.offsets[args.dealt.all()];
    u32 column = (beside * LANES + lane) * HALF;
    const Vec<u32, 2> edges = load<2>(args.edges + 2 * chunk);
    // A long list that begins in a chunk fills it.
    const u32 first = low < all ? edges.get(0) : NONE;
    const u32 last = low + PART <= all ? edges.get(1) : NONE;
    const bool there = column < args.columns;
    if (!there) column = 0;
    ROLLED for (u32 side = 0; side < 2; ++side) {
      const u32 slot = side ? last : first;
      if (slot == NONE) continue;
      const u32 begin = args.offsets[slot], end = args.offsets[slot + 1];
      if ((begin >= low) != (side == 1)) continue;
      const u32 from = begin < low ? low : begin, to = end < low + PART ? end : low + PART;
      A x[HALF], known[HALF] = {};
      clear(x);
      know(args, args.dealt.row_of(slot), column, known);
      ROLLED for (u32 window = from; window < to; window += LANES) {
        const u32 element = window + lane < to ? args.order[window + lane] : NONE;
        const u32 here = lesser(to - window, LANES);
        ROLLED for (u32 i = 0; i < here; i += MANY) {
          Element<HALF> taken[MANY];
          UNROLL for (int j = 0; j < MANY; ++j) {
            const u32 k = __shfl_sync(~0u, element, lesser(i + j, here - 1));
            taken[j].fetch(args, k, column);
          }
          UNROLL for (int j = 0; j < MANY; ++j) {
            if (i + j < here) add(x, taken[j], known, false);
          }
        }
      }
      keep(args, 2 * chunk + side, column, there, x);
      join(args, slot, chunk, begin / PART, (end - 1) / PART, beside, column, there);
    }
  }

  static DEVICE void keep(const Args& args, u32 number, u32 column, bool there,
                          const A (&x)[HALF]) {
    Acc<T>* sum = row_of(args.parts, number, args.step_parts) + column;
    UNROLL for (int v = 0; v < HALF; v += STEP) {
      Vec<Acc<T>, STEP> part;
      UNROLL for (int j = 0; j < STEP; ++j) part.set(j, x[v + j]);
      if (there) store<STEP>(sum + v, part);
    }
  }

  // The parts of a list, of chunks from `low` to `high`, by the warp that finishes last: first of
  // SPAN chunks, which takes the place of the first of them, then of all those.
  static DEVICE void join(const Args& args, u32 slot, u32 chunk, u32 low, u32 high, u32 beside,
                          u32 column, bool there) {
    const u32 begin = chunk / SPAN * SPAN, end = begin + SPAN - 1;
    u32 from = begin < low ? low : begin, to = high < end ? high : end;
    u32 number = 2 * from + (from == low);
    Acc<T> x[HALF];
    ROLLED for (u32 span = 1;; span = SPAN) {
      // The leader's fence is for what all lanes have stored. Warps side by side count for each
      // other: each joins its own columns of all parts.
      __syncwarp();
      __threadfence();
      u32 others = 0;
      u32* done = args.done + number * (TWO * args.chunks) + beside;
      if ((threadIdx.x & 31) == 0) others = atomicAdd(done, 1u);
      if (__shfl_sync(~0u, others, 0) != to - from) return;
      __threadfence();
      __syncwarp();
      clear(x);
      ROLLED for (u32 i = from; i <= to; i += MANY) {
        Vec<Acc<T>, STEP> y[MANY][HALF / STEP];
        UNROLL for (int j = 0; j < MANY; ++j) {
          const u32 at = (i + j) * span < low ? low : (i + j) * span;
          const Acc<T>* part = row_of(args.parts, 2 * at + (at == low), args.step_parts) + column;
          UNROLL for (int v = 0; v < HALF / STEP; ++v) {
            UNROLL for (int u = 0; u < STEP; ++u) y[j][v].set(u, F::template none<A>());
            if (i + j <= to) y[j][v] = load<STEP>(part + v * STEP);
          }
        }
        UNROLL for (int j = 0; j < MANY; ++j) {
          UNROLL for (int v = 0; v < HALF; ++v) {
            x[v] = F::join(x[v], y[j][v / STEP].get(v % STEP));
          }
        }
      }
      if (span == SPAN || low / SPAN == high / SPAN) break;
      keep(args, number, column, there, x);
      from = low / SPAN, to = high / SPAN;
      number = 2 * args.pieces + low;
    }
    const u32 row = args.dealt.row_of(slot);
    args.finish(x, args.offsets[slot + 1] - args.offsets[slot]);
    if (there) put_total<T, ADD>(row_of(args.target, row, args.step_target) + column, x);
  }
};

}  // namespace baracuda
#endif
