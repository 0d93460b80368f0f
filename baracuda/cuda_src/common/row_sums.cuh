// Sums that rows leave: over the rows of a block, gradients of columns, of which each thread has
// those of the elements that it holds in vectors of V; of each row, those of its planes.
#pragma once
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// In shared memory, as rows leave no registers for them.
template <class A, int SUMS, int HELD, int V> struct SumsOnChip {
  // Vectors of 16 bytes of the accumulate type in V of its elements.
  static constexpr int PARTS = V * sizeof(A) / 16, PART = 16 / sizeof(A);
  using Part = Vec<A, PART>;

  Part* room;

  DEVICE SumsOnChip(void* shared) : room(static_cast<Part*>(shared)) {
    UNROLL for (int i = 0; i < SUMS * HELD * PARTS; ++i) *place(i) = {};
  }
  // Nobody else comes there.
  DEVICE Part* place(int slot) const {
    return room + slot * int(blockDim.x) + int(threadIdx.x);
  }
  template <int N> DEVICE void add(int h, const A (&t)[N][V]) {
    UNROLL for (int s = 0; s < SUMS; ++s) {
      UNROLL for (int part = 0; part < PARTS; ++part) {
        Part* p = place((s * HELD + h) * PARTS + part);
        Part v = *p;
        UNROLL for (int i = 0; i < PART; ++i) v.at[i] += t[s][part * PART + i];
        *p = v;
      }
    }
  }
  // Into the lines of the block, those of its groups of lanes added up in their order.
  DEVICE void leave(A* lines, i32 n, int lanes) const {
    __syncthreads();
    const int groups = int(blockDim.x) / lanes, items = SUMS * HELD * PARTS * lanes;
    for (int item = threadIdx.x; item < items; item += blockDim.x) {
      const int rank = item % lanes, slot = item / lanes;
      const Part* p = room + slot * int(blockDim.x);
      Part sum = p[rank];
      for (int g = 1; g < groups; ++g) {
        const Part v = p[g * lanes + rank];
        UNROLL for (int i = 0; i < PART; ++i) sum.at[i] += v.at[i];
      }
      const int part = slot % PARTS, h = slot / PARTS % HELD;
      const i32 e = (rank + h * lanes) * V + part * PART;
      A* to = lines + i64(slot / PARTS / HELD) * n;
      UNROLL for (int i = 0; i < PART; ++i) {
        if (e + i < n) to[e + i] = sum.at[i];
      }
    }
  }
};

// In registers, of a block that has one row at a time, all of whose vectors are there.
template <class A, int SUMS, int HELD, int V> struct SumsKept {
  Vec<A, V> at[SUMS][HELD];

  DEVICE SumsKept(void*) : at{} {}
  template <int N> DEVICE void add(int h, const A (&t)[N][V]) {
    UNROLL for (int s = 0; s < SUMS; ++s) {
      UNROLL for (int i = 0; i < V; ++i) at[s][h].at[i] += t[s][i];
    }
  }
  // Into lines of n, from where the thread's first vector is; the next is `step` elements on.
  DEVICE void leave(A* lines, i32 n, int step) const {
    UNROLL for (int s = 0; s < SUMS; ++s) {
      UNROLL for (int h = 0; h < HELD; ++h) store<V>(lines + i64(s) * n + h * step, at[s][h]);
    }
  }
};

// Of rows that have none.
struct NoSums {
  DEVICE NoSums(void*) {}
  template <class T> DEVICE void add(int, const T&) {}
  template <class T> DEVICE void leave(T*, i32, int) const {}
};

// Sums of the planes of a row: of a vector each thread keeps its own.
template <class A, int SUMS, int HELD, int V> struct PlaneShares {
  A* room;

  DEVICE A* place(int sum) const { return room + sum * HELD * int(blockDim.x); }
  template <int N> DEVICE void keep(int vector, const A (&t)[N][V]) const {
    UNROLL for (int s = 0; s < SUMS; ++s) {
      A sum = 0;
      UNROLL for (int i = 0; i < V; ++i) sum += t[s][i];
      place(s)[vector] = sum;
    }
  }
  // Some lanes join those of a plane; the row's vectors are from `base` on.
  template <class Args, class Row>
  DEVICE void leave(const Args& args, const Row& row, i64 number, int base) const {
    const int together = 1 << args.log_together, vectors = int(args.plane.size) / V;
    const int lane = row.rank & (together - 1), step = row.lanes >> args.log_together;
    const i64 all = i64(args.groups.size) * args.channels;
    for (int first = 0; first < args.channels; first += step) {
      const int channel = first + (row.rank >> args.log_together);
      Several<A, SUMS> sums{};
      if (channel < args.channels) {
        for (int i = lane; i < vectors; i += together) {
          UNROLL for (int s = 0; s < SUMS; ++s) {
            sums.at[s] += place(s)[base + channel * vectors + i];
          }
        }
      }
      sums = join_lanes(sums, together, Added<A, SUMS>{});
      if (lane || channel >= args.channels || number >= args.rows) continue;
      A* to = args.beside + i64(args.groups.divide(u32(number))) * SUMS * all;
      UNROLL for (int s = 0; s < SUMS; ++s) to[s * all + row.channel + channel] = sums.at[s];
    }
  }
};

}  // namespace baracuda
#endif
