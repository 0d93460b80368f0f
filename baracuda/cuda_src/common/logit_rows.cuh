// How threads share rows of logits, read them, and keep them on chip for another look.
//
// As in the rows schedule a thread holds HELD vectors of 16 bytes, and a row is that of some lanes
// of a warp, of a block, or of one that reads again what it cannot hold; of the rest, a block keeps
// in shared memory what fits. A CLUSTER of blocks may share a row. Where rows lie side by side,
// ALONE, each has one thread. ROWS of an array each lie beside each other, the first LOGITS of
// which are logits: what is behind their end is smaller than any.
#pragma once
#include "math.cuh"
#include "reduce.cuh"
#include "row.cuh"
#ifdef __CUDACC__

namespace baracuda {

constexpr int ALONE = 3;

template <class T, int WAY, int HELD, bool WIDE, int CLUSTER, int ROWS = 1, int LOGITS = ROWS>
struct LogitRows {
  using A = Acc<T>;
  static constexpr Access ACCESS = WIDE ? VECTORS : STEPS;
  static constexpr int V = 16 / sizeof(T);
  static constexpr bool BY_BLOCK = WAY == BLOCK || WAY == LONG, LOOPS = WAY == LONG || WAY == ALONE;
  static constexpr bool FEW = sizeof(T) == 8 || WAY == ALONE || !WIDE;
  static constexpr int RESIDENT = BY_BLOCK ? 1 : FEW ? 2 : 3;
  // Bytes of shared memory for what the blocks of a cluster tell each other.
  static constexpr int TOLD = CLUSTER > 1 ? CLUSTER * 48 : 0;

  static DEVICE A nothing() { return -A(infinity()); }
  // What logits are compared with whose largest this is.
  static DEVICE A base(A most) { return most == nothing() ? A(0) : most; }

  struct Loaded {
    Vec<T, V> row[ROWS][HELD];
  };
  // What a thread has of a row: the vectors from `rank` on, `lanes` apart. It takes those of
  // `rounds` and then what comes behind them, the `last`; those of `kept` rounds stay on chip.
  struct Share {
    const T* row[ROWS];
    i64 step[ROWS];
    i64 number;
    i32 end, rank, lanes, rounds, last, kept;
  };

  // What a block has of shared memory: for what it is told, and behind that for what it keeps.
  static DEVICE u32* chip() {
    extern __shared__ __align__(16) u32 all[];
    return all;
  }
  static DEVICE Vec<T, V>* room() {
    return reinterpret_cast<Vec<T, V>*>(chip() + TOLD / 4) + threadIdx.x;
  }

  // Which row is this thread's, before anything is known of it.
  static DEVICE Share share(i32 log_lanes) {
    Share row{};
    const int block = int(blockIdx.x % CLUSTER);
    row.lanes = BY_BLOCK ? i32(blockDim.x) * CLUSTER : 1 << log_lanes;
    row.rank = BY_BLOCK ? i32(blockDim.x) * block + i32(threadIdx.x)
                        : i32(threadIdx.x) & (row.lanes - 1);
    const int groups = BY_BLOCK ? 1 : int(blockDim.x) >> log_lanes;
    const int group = BY_BLOCK ? 0 : int(threadIdx.x) >> log_lanes;
    row.number = i64(blockIdx.x / CLUSTER) * groups + group;
    return row;
  }
  // It has `end` elements, 0 of a row that is not read.
  static DEVICE void begin(Share& row, i32 end, i32 rounds, i32 kept) {
    row.end = end;
    row.rounds = LOOPS && end ? rounds : 0;
    row.last = LOOPS ? rounds * HELD : 0;
    row.kept = kept;
  }

  static DEVICE i32 element(const Share& row, i32 h) { return (row.rank + h * row.lanes) * V; }
  // Of a vector that begins before the end.
  static DEVICE bool there(const Share& row, i32 e, int i) { return WIDE || e + i < row.end; }

  static DEVICE Vec<T, V> none(int r) {
    A x[V];
    UNROLL for (int i = 0; i < V; ++i) x[i] = nothing();
    Vec<T, V> v{};
    if (r < LOGITS) narrow(x, v);
    return v;
  }
  // Vectors from the h-th on, which are all there (WHOLE) or not.
  template <bool WHOLE> static DEVICE Loaded fetch_all(const Share& row, i32 h) {
    Loaded to;
    const i32 first = element(row, h), step = row.lanes * V;
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = first + k * step;
      UNROLL for (int r = 0; r < ROWS; ++r) {
        if constexpr (WHOLE && WIDE) to.row[r][k] = load<V>(row.row[r] + e);
        else to.row[r][k] = fetch<V, ACCESS>(row.row[r], row.step[r], e, row.end, none(r));
      }
    }
    return to;
  }

  // The last vectors of a thread, with which every look begins. A kernel asks for them first, and
  // then for all else that it has to wait for.
  static DEVICE Loaded fetch_last(const Share& row) { return fetch_all<false>(row, row.last); }
  // Calls f(h, vectors) for all vectors of a thread. Nothing is kept: the next are under way.
  template <class F> static DEVICE void look_once(const Share& row, Loaded v, const F& f) {
    i32 h = row.last;
    ROLLED for (i32 round = 0;; ++round) {
      Loaded next;
      if (LOOPS && round < row.rounds) next = fetch_all<true>(row, round * HELD);
      f(h, v);
      if (!LOOPS || round >= row.rounds) break;
      h = round * HELD;
      v = next;
    }
  }
  // The same where they are looked at again: those are kept that fit.
  template <class F> static DEVICE void look(const Share& row, Loaded v, const F& f) {
    Vec<T, V>* to = room();
    i32 h = row.last;
    ROLLED for (i32 round = 0;; ++round) {
      f(h, v);
      if (!LOOPS || round >= row.rounds) break;
      h = round * HELD;
      v = fetch_all<true>(row, h);
      if (round >= row.kept) continue;
      UNROLL for (int k = 0; k < HELD; ++k) {
        UNROLL for (int r = 0; r < ROWS; ++r, to += blockDim.x) to[0] = v.row[r][k];
      }
    }
  }
  // The same again.
  template <class F> static DEVICE void look_again(const Share& row, Loaded v, const F& f) {
    const Vec<T, V>* from = room();
    i32 h = row.last;
    ROLLED for (i32 round = 0;; ++round) {
      f(h, v);
      if (!LOOPS || round >= row.rounds) break;
      h = round * HELD;
      if (round >= row.kept) {
        v = fetch_all<true>(row, h);
        continue;
      }
      UNROLL for (int k = 0; k < HELD; ++k) {
        UNROLL for (int r = 0; r < ROWS; ++r, from += blockDim.x) v.row[r][k] = from[0];
      }
    }
  }

  // The gradient of a row that does not count.
  template <bool ADD> static DEVICE void put_zeros(const Share& row, T* d, i64 step, i32 n) {
    A zero[V] = {};
    for (i32 h = 0; !ADD && element(row, h) < n; ++h) {
      put<ACCESS, ADD>(d, step, element(row, h), n, zero);
    }
  }

  // Joins what the threads of a row have; `turn` counts the joins of a kernel. All blocks of a
  // cluster have arrived before each.
  template <class State, class Across>
  static DEVICE State across_row(
      const Share& row, State s, const State& start, int& turn, const Across& across) {
    if constexpr (!BY_BLOCK) return across(s, row.lanes);
    using Meet = Rooms<State>;
    __shared__ Meet rooms;
    s = across_block(s, start, rooms, turn, across);
    if constexpr (CLUSTER > 1) {
      static_assert(sizeof(State) <= 48, "the host leaves so many bytes for a block");
      State* const told = reinterpret_cast<State*>(chip());
      cluster_wait();
      if (threadIdx.x < CLUSTER) of_block(told, threadIdx.x)[blockIdx.x % CLUSTER] = s;
      cluster_sync();
      s = across(told[threadIdx.x % CLUSTER], CLUSTER);
    }
    return s;
  }
};

}  // namespace baracuda
#endif
