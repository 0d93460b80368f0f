// Rows whose sums, gradients of columns, stay in registers: for functors of Rows that have such.
//
// A block takes one row after the other, and rows are as long as what its threads hold, HELD
// vectors each. Beside its sums a thread keeps its part of the columns and, while it computes a
// row, that of the next, which is under way; the one after that is on its way to the L2. Of longer
// rows (FAR) sums are on chip, columns are read again, only the L2 is asked for the next row, and
// of float32 an input that no sum along the row needs (LATE) is read at last.
#pragma once
#include "index.cuh"
#include "reduce.cuh"
#include "row.cuh"
#include "row_sums.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    class F, class T, int HELD, Access ACCESS, bool FAR, bool ADD, class C = T, class N = T,
    int NARROW = 0>
struct KeptRows {
  using A = Acc<T>;
  using State = typename F::State;
  using Known = typename F::Known;
  static constexpr int RESIDENT = 1, V = 16 / sizeof(T), G = FRONT<T>;
  static constexpr int LOADS = F::loads, COLUMNS = F::columns, OUT = F::outputs, SUMS = F::sums;
  static constexpr u32 FULL = (1u << V) - 1;
  static_assert(SUMS > 0 && OUT == 1 && LOADS == F::inputs && F::stages != TWICE, "see above");

  struct Args : Operands<T, LOADS + COLUMNS, OUT>, Beside<A>, F {
    i64 rows;
    i32 n, pad;
    i64 step[LOADS + OUT + COLUMNS];  // from one element to the next
    Walk<0, LOADS + OUT, i64> walk;
  };

  // Where a row is, and what a thread has of it.
  struct Place {
    i64 at[LOADS + OUT];
  };
  struct Row {
    Piece<T, N, V> x[LOADS][HELD];
    Piece<T, N, G> front[LOADS];
  };
  // Of the loads, then outputs: those whose bits are set in NARROW are of N, narrower than T.
  static HD constexpr bool is_narrow(int k) { return NARROW >> k & 1; }
  // Three rows leave no registers for columns, nor do two for wider ones.
  static constexpr bool AT_HAND = !FAR && LOADS < 3 && sizeof(C) == sizeof(T);
  // Columns that no rounding harms have the offset in them: one that is added to each element of
  // each row costs registers. Adding -0 is no instruction.
  static constexpr bool SHIFTED = F::shifts && AT_HAND && sizeof(C) == sizeof(A);
  static constexpr int LATE = FAR && sizeof(T) == 4 ? F::LATE : -1;
  using Adder =
      typename Either<FAR, SumsOnChip<A, SUMS, HELD, V>, SumsKept<A, SUMS, HELD, V>>::type;
  using Columns = Vec<C, V>[COLUMNS][HELD];

  static DEVICE F functor(const Args& args) {
    F f = args;
    if constexpr (SHIFTED) f.offset = -0.0;
    return f;
  }
  static DEVICE i32 element(int h) { return (int(threadIdx.x) + h * int(blockDim.x)) * V; }

  static DEVICE Row load_row(const Args& args, const Place& place) {
    Row row;
    UNROLL for (int k = 0; k < LOADS; ++k) {
      if constexpr (F::stages == CENTRED) load_at(args, place, k, 0, row.front[k]);
      UNROLL for (int h = 0; h < HELD; ++h) {
        if (k != LATE) load_at(args, place, k, element(h), row.x[k][h]);
      }
    }
    return row;
  }
  template <int W>
  static DEVICE void load_at(
      const Args& args, const Place& place, int k, i32 e, Piece<T, N, W>& to) {
    to.template fetch<ACCESS>(is_narrow(k), args.in[k], place.at[k], args.step[k], e, e + W);
  }

  static DEVICE void ask(const Args& args, const Place& place) {
    if constexpr (ACCESS == VECTORS) {
      UNROLL for (int k = 0; k < LOADS; ++k) {
        UNROLL for (int h = 0; h < HELD; ++h) {
          prefetch_either<N, V>(is_narrow(k), args.in[k], place.at[k] + element(h));
        }
      }
    }
  }

  static DEVICE Vec<C, V> load_column(const Args& args, int k, int h) {
    const i32 e = element(h);
    return fetch_column<C, V, ACCESS>(
        args.in[LOADS + k], args.step[LOADS + OUT + k], e, e + V);
  }
  static DEVICE void widen_all(
      const Args& args, const Row& row, const Columns& column, int h, A (&x)[LOADS][V],
      A (&c)[COLUMNS + 1][V]) {
    UNROLL for (int k = 0; k < LOADS; ++k) {
      if (k != LATE) row.x[k][h].widen(is_narrow(k), x[k]);
    }
    UNROLL for (int k = 0; k < COLUMNS; ++k) {
      widen(AT_HAND ? column[k][h] : load_column(args, k, h), c[k]);
    }
  }

  template <class Rooms>
  static DEVICE void stage(
      const Args& args, const Row& row, const Columns& column, A part, Rooms& rooms, int& turn,
      Known& known) {
    const F f = functor(args);
    State s = F::template start<0>();
    UNROLL for (int h = 0; h < HELD; ++h) {
      A x[LOADS][V], c[COLUMNS + 1][V];
      widen_all(args, row, column, h, x, c);
      f.template take<0>(s, known, x, c, FULL);
    }
    s = block_sums<1>(s, rooms, turn);
    f.template settle<0>(s, part, known);
  }

  template <class Rooms>
  static DEVICE void one_row(
      const Args& args, const Place& place, const Row& row, const Columns& column, A part,
      Rooms& rooms, int& turn, Adder& sums) {
    const F f = functor(args);
    Known known{};
    if constexpr (F::stages == CENTRED) {
      A front[G];
      row.front[F::X].widen(is_narrow(F::X), front);
      known.guess(front, G);
    }
    stage(args, row, column, part, rooms, turn, known);
    if constexpr (F::stages == CENTRED) {
      if (!known.good()) {
        known.correct();
        stage(args, row, column, part, rooms, turn, known);
      }
    }
    UNROLL for (int h = 0; h < HELD; ++h) {
      A x[LOADS][V], c[COLUMNS + 1][V], y[1][V], t[SUMS + 1][V];
      widen_all(args, row, column, h, x, c);
      const i32 e = element(h);
      if constexpr (LATE >= 0) {
        Piece<T, N, V> late;
        load_at(args, place, LATE, e, late);
        late.widen(is_narrow(LATE), x[LATE]);
      }
      f.finish(known, x, c, FULL, y);
      f.share(known, x, t);
      put_either<N, ACCESS>(
          is_narrow(LOADS), ADD, args.out[0], place.at[LOADS], args.step[LOADS], e, e + V, y[0]);
      sums.add(h, t);
    }
  }

  static DEVICE void run(const Args& args) {
    using Room = Several<A, 32 * sizeof(State) / sizeof(A)>;
    __shared__ Room rooms[2];
    int turn = 0;
    const A part = A(1) / A(args.n);
    Columns column;
    if constexpr (AT_HAND) {
      UNROLL for (int k = 0; k < COLUMNS; ++k) {
        UNROLL for (int h = 0; h < HELD; ++h) {
          column[k][h] = load_column(args, k, h);
          if constexpr (SHIFTED) {
            A c[V];
            widen(column[k][h], c);
            UNROLL for (int i = 0; i < V; ++i) c[i] = at_once(c[i] + A(args.offset));
            narrow(c, column[k][h]);
          }
        }
      }
    }
    void* room = nullptr;
    if constexpr (FAR) {
      extern __shared__ __align__(16) f64 memory[];
      room = memory;
    }
    Adder sums(room);
    const auto place_of = [&](i64 number) {
      Place place;
      args.walk.template offsets<1>(number < args.rows ? number : args.rows - 1, place.at);
      return place;
    };
    const u32 step = gridDim.x;
    i64 number = blockIdx.x;
    if constexpr (FAR) {
      ROLLED for (; number < args.rows; number += step) {
        const Place place = place_of(number);
        const Row row = load_row(args, place);
        if (number + step < args.rows) ask(args, place_of(number + step));
        one_row(args, place, row, column, part, rooms, turn, sums);
      }
    } else {
      Place here = place_of(number), next = place_of(number + step);
      Row coming = load_row(args, here);
      ROLLED while (number < args.rows) {
        const Row row = coming;
        const Place place = here;
        number += step;
        here = next;
        if (number < args.rows) coming = load_row(args, here);
        next = place_of(number + step);
        if (number + step < args.rows) ask(args, next);
        one_row(args, place, row, column, part, rooms, turn, sums);
      }
    }
    A* line = args.beside + i64(blockIdx.x) * SUMS * args.n;
    if constexpr (FAR) sums.leave(line, args.n, int(blockDim.x));
    else sums.leave(line + element(0), args.n, int(blockDim.x) * V);
  }
};

}  // namespace baracuda
#endif
