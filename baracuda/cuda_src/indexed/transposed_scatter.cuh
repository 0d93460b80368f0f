// Scatter on chip across columns too long for a tile: columns are turned into rows, summed, and the
// sums turned back, all by way of a stage so small that it stays in the L2.
//
// Blocks take items until none is left: LINES lines of GROUP columns to be turned, a column to be
// summed, LINES bins to be turned back. An item waits for what it needs, which are items that were
// taken before it, so that some block always gets on. The stage has room for some groups, one after
// the other; what is done to a group comes `lag` groups after what was done to it before.
//
// The sums are those of ScatterTiles, whoever takes an item and whenever.
#pragma once
#include "accumulate.cuh"
#include "policy.cuh"
#ifdef __CUDACC__

namespace baracuda {

constexpr u32 GROUP = 64, LINES = 128;

// A square of the turn on chip: GROUP rows of LINES elements, so far apart that neither fours of a
// row nor those of 32 rows meet in one bank.
template <class E> struct Square {
  static constexpr u32 PITCH = LINES + 4, FOURS = LINES / 4, BYTES = GROUP * PITCH * sizeof(E);
  E* at;

  DEVICE Square(void* memory) : at(static_cast<E*>(memory)) {}
  DEVICE Vec<E, 4> get(u32 row, u32 line) const { return load<4>(at + row * PITCH + line); }
  DEVICE void set(u32 row, u32 line, const Vec<E, 4>& x) const {
    store<4>(at + row * PITCH + line, x);
  }
};

// Of a counter: what was done before it came to be so is seen by who reads it.
DEVICE u32 acquired(const u32* p) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
DEVICE void release_one(u32* p) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

// What a lane has: two columns side by side where accesses are so wide, else 32 apart; their rows
// on chip are 32 apart either way. The column of a row:
template <int WIDTH> DEVICE u32 column_of(u32 row) {
  return WIDTH == 2 ? row % 32 * 2 + row / 32 : row;
}

// A row of the stage, as a tile is described: V elements are read at a time, VO sums written.
template <class T, class R, int V, int VO> struct StageRow {
  static constexpr bool SIDE_BY_SIDE = true;
  static constexpr u32 FRONT = 8;
  struct {
    const T* values;
    const u16* index;
    R* bins;
  } args;
  u32 bins, end, first = 0, low = 0;
  struct Place {
    u32 values, lane;
    bool there;
  };

  DEVICE StageRow(const T* values, const u16* index, R* sums, u32 length, u32 extent)
      : args{values, index, sums}, bins(extent), end(length / V) {}
  DEVICE u32 most(u32 room) const { return room / 4 * 4 - 4; }
  DEVICE StageRow part_of(u32 begin, u32 size) const {
    StageRow part = *this;
    part.low = begin;
    part.bins = bins - begin < size ? bins - begin : size;
    return part;
  }
  template <int N> DEVICE Place element(u32 i) const {
    return {(i < end ? i : end - 1) * V, 0, i < end};
  }
  template <int N, int X> DEVICE void indices(const Place& place, Vec<u16, V>& index) const {
    index = load<V>(args.index + place.values);
  }
  DEVICE void bins_of(const Vec<u16, V>& index, u32, u32&, u32 (&bin)[V]) const {
    UNROLL for (int v = 0; v < V; ++v) {
      const u32 local = u32(index.get(v)) - low;
      bin[v] = local < bins ? local : bins;
    }
  }
  DEVICE u32 held() const { return (bins + VO - 1) / VO; }
  template <int N> DEVICE bool whole(u32 i, u32& offset, u32& bin) const {
    bin = i * VO;
    offset = low + bin;
    return true;
  }
};

// Accesses have W columns side by side: 1 or 2.
template <class T, class P, int W, class I, bool ADD> struct ScatterTransposed {
  using A = Acc<T>;
  // Sums that are added to something are rounded only then.
  using R = typename Either<ADD, A, T>::type;
  static constexpr int RESIDENT = sizeof(T) < 8 ? 2 : 1;
  static constexpr int V = 16 / int(sizeof(T)), VO = 16 / int(greater(4, sizeof(T)));
  static constexpr int DEPTH = sizeof(T) == 2 ? 2 : 4;
  static constexpr u32 NOWHERE = 0xffff;  // a bin that nothing has
  using Row = StageRow<T, R, V, VO>;
  using Sum = SumOnChip<T, u16, R, V, V, VO, DEPTH, false>;

  struct Args {
    const T* values;
    const P* index;
    T* target;
    // The stage: elements, their bins, sums, in rows of whole LINES.
    T* elements;
    u16* places;
    R* sums;
    u32* done;  // items that were taken; of each group, squares turned, rows summed, turned back
    Report* listener;
    i64 extent;
    u32 ticket, bits, room, length;
    u32 in, out;  // squares of a group, of elements and of sums
    u32 groups, lag, items, pad;
    Extent<u32> slots, step;  // groups for which the stage has room; items of a group
    I columns, beside, steps[3], last;
    Extent<typename Unsigned<I>::type> across;  // groups of an outer item
    typename Unsigned<I>::type none;
    Walk<0, 3, I> walk;  // outer items
  };

  // Where a group is in the arrays, and in the stage.
  struct Group {
    u32 slot, left;  // left: columns from the first on
    I outer, first, base[3];

    DEVICE Group(const Args& args, u32 group) {
      slot = group - args.slots.divide(group) * args.slots.size;
      outer = I(args.across.divide(group));
      first = (I(group) - outer * I(args.across.size)) * I(GROUP);
      left = args.columns - first < I(GROUP) ? u32(args.columns - first) : GROUP;
      args.walk.template offsets<1>(outer, base);
    }
    // The offset of a column's row, where all have `squares`.
    DEVICE i64 row(u32 column, u32 squares) const {
      return i64(slot * GROUP + column) * (squares * LINES);
    }
  };

  // How many items of a group are done.
  static DEVICE u32* counter(const Args& args, u32 group, u32 way) {
    return args.done + 1 + group * 3 + way;
  }
  // The first thread waits, the others at the barrier that has to follow.
  static DEVICE void wait(const u32* counter, u32 items) {
    if (threadIdx.x > 0) return;
    while (acquired(counter) < items) continue;
  }

  // The elements of a lane in four lines: with more under way, all wait longer.
  struct Lines {
    Vec<P, W> index[4][2 / W];
    Vec<T, W> value[4][2 / W];
  };

  static DEVICE void turn(const Args& args, u32 group, u32 square, u32* memory) {
    const Group at(args, group);
    const Square<T> values(memory);
    const Square<u16> places(reinterpret_cast<char*>(memory) + Square<T>::BYTES);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 extent = u32(args.extent);
    bool strange = false;
    // What is not there is read elsewhere.
    I from[2 / W][2];
    UNROLL for (int h = 0; h < 2 / W; ++h) {
      u32 column = W == 2 ? 2 * lane : lane + 32 * h;
      if (column >= at.left) column = 0;
      from[h][0] = at.base[0] + at.first + I(column);
      from[h][1] = at.base[1] + (at.first + I(column)) * args.beside;
    }
    ROLLED for (u32 begin = warp * 4; begin < LINES; begin += warps * 4) {
      Lines x;
      UNROLL for (int j = 0; j < 4; ++j) {
        u32 line = square * LINES + begin + j;
        if (line >= args.length) line = args.length - 1;
        UNROLL for (int h = 0; h < 2 / W; ++h) {
          x.index[j][h] = load<PASSING, W>(args.index + from[h][1] + I(line) * args.steps[1]);
          x.value[j][h] = load<PASSING, W>(args.values + from[h][0] + I(line) * args.steps[0]);
        }
      }
      UNROLL for (int c = 0; c < 2; ++c) {
        Vec<T, 4> value;
        Vec<u16, 4> place;
        UNROLL for (int j = 0; j < 4; ++j) {
          const bool there = square * LINES + begin + j < args.length;
          const u32 i = narrowed(x.index[j][c / W].get(c % W));
          strange |= there && i >= extent;
          place.set(j, u16(there && i < extent ? i : NOWHERE));
          value.set(j, x.value[j][c / W].get(c % W));
        }
        values.set(c * 32 + lane, begin, value);
        places.set(c * 32 + lane, begin, place);
      }
    }
    // Who had this place has left it, also that of sums.
    if (group >= args.slots.size) wait(counter(args, group - args.slots.size, 2), args.out);
    __syncthreads();
    ROLLED for (u32 i = threadIdx.x; i < GROUP * Square<T>::FOURS; i += blockDim.x) {
      const u32 row = i / Square<T>::FOURS, line = i % Square<T>::FOURS * 4;
      const i64 to = at.row(column_of<W>(row), args.in) + square * LINES + line;
      store<STAYING>(args.elements + to, values.get(row, line));
      store<STAYING>(args.places + to, places.get(row, line));
    }
    if (strange) look(args, group, square);
  }

  static DEVICE void turn_back(const Args& args, u32 group, u32 square, u32* memory) {
    const Group at(args, group);
    const Square<R> sums(memory);
    ROLLED for (u32 i = threadIdx.x; i < GROUP * Square<R>::FOURS; i += blockDim.x) {
      const u32 row = i / Square<R>::FOURS, line = i % Square<R>::FOURS * 4;
      const i64 from = at.row(column_of<W>(row), args.out) + square * LINES + line;
      sums.set(row, line, load<PASSING, 4>(args.sums + from));
    }
    __syncthreads();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    T* target = args.target + at.base[2] + at.first;
    ROLLED for (u32 begin = warp * 4; begin < LINES; begin += warps * 4) {
      const Vec<R, 4> x[2] = {sums.get(lane, begin), sums.get(lane + 32, begin)};
      UNROLL for (int j = 0; j < 4; ++j) {
        const u32 bin = square * LINES + begin + j;
        if (bin >= args.extent) break;
        T* to = target + I(bin) * args.steps[2];
        UNROLL for (int h = 0; h < 2 / W; ++h) {
          const u32 column = W == 2 ? 2 * lane : lane + 32 * h;
          if (column >= at.left) continue;
          A y[W];
          UNROLL for (int c = 0; c < W; ++c) y[c] = widen(x[h + c], j);
          if constexpr (ADD) {
            put<true>(to + column, y);
          } else {
            Vec<T, W> z;
            narrow(y, z);
            store<PASSING>(to + column, z);
          }
        }
      }
    }
  }

  // Report what is out of range of what a thread turns. Out of line: no index is expected here.
  static __device__ __noinline__ void look(const Args& args, u32 group, u32 square) {
    const Group at(args, group);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    ROLLED for (u32 i = 0; i < LINES / warps; ++i) {
      const u32 l = (i / 4 * warps + warp) * 4 + i % 4;
      const i64 line = square * LINES + l;
      if (line >= args.length) return;
      ROLLED for (u32 row = lane; row < GROUP; row += 32) {
        if (column_of<W>(row) >= at.left) continue;
        const I column = at.first + I(column_of<W>(row));
        valid(args.index[at.base[1] + column * args.beside + I(line) * args.steps[1]], args.extent,
              args.listener, args.ticket,
              (i64(at.outer) * args.length + line) * args.columns + column);
      }
    }
  }

  // Do an item; the counter that it counts for, none if it is not there.
  static DEVICE u32* run_item(const Args& args, u32 item, u32* memory) {
    const u32 step = args.step.divide(item), number = item - step * args.step.size;
    // The oldest group comes first, so that the newest finds its place empty.
    const u32 way = number < args.out ? 2 : number < args.out + GROUP ? 1 : 0;
    const u32 group = step - way * args.lag;
    if (group >= args.groups) return nullptr;
    if (way == 0) {
      turn(args, group, number - args.out - GROUP, memory);
    } else if (way == 1) {
      wait(counter(args, group, 0), args.in);
      __syncthreads();
      const Group at(args, group);
      const u32 column = number - args.out;
      const i64 in = at.row(column, args.in);
      if (column < at.left) {
        Sum::template run<Row>(
            args.room, args.bits, args.elements + in, args.places + in,
            args.sums + at.row(column, args.out), args.in * LINES, u32(args.extent));
      }
    } else {
      wait(counter(args, group, 1), GROUP);
      __syncthreads();
      turn_back(args, group, number, memory);
    }
    return counter(args, group, way);
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    u32 next = 0, turn = 0, *done = nullptr;
    if (threadIdx.x == 0) next = atomicAdd(args.done, 1u);
    ROLLED while (true) {
      // In turns in two places, so that the fast do not write what the slow still read.
      if (threadIdx.x == 0) memory[turn] = next;
      __syncthreads();
      // Said while the others go on.
      if (threadIdx.x == 0 && done) release_one(done);
      const u32 item = memory[turn];
      if (item >= args.items) return;
      // Asked for before it is needed.
      if (threadIdx.x == 0) next = atomicAdd(args.done, 1u);
      done = run_item(args, item, memory + Row::FRONT);
      turn ^= 1;
    }
  }
};

}  // namespace baracuda
#endif
