// Rows that come by copies in bulk while their sums, gradients of columns, stay in registers: for
// the functors of KeptRows, on devices that have such copies (sm_90 on).
//
// A block takes one row after the other, a cluster of PARTS blocks a longer one. Each warp has
// its own part of it, HELD vectors a lane, which nobody else reads: it lies in one of SLOTS
// places on chip, and as soon as it is written that of a later row is on its way there. So
// registers keep nothing but columns and sums, and rows are under way while others are joined.
// Columns wider than rows lie on chip where there is room beside the rows (CHIP).
// With more than two places what the next row has is brought before a row is written, so that
// nobody waits for it (EARLY).
#pragma once
#include "bulk.cuh"
#include "index.cuh"
#include "reduce.cuh"
#include "row.cuh"
#include "row_sums.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    class F, class T, int HELD, int SLOTS, int PARTS, bool ADD, bool CHIP, class C = T,
    class N = T, int NARROW = 0>
struct StreamedRows {
  using A = Acc<T>;
  using State = typename F::State;
  using Known = typename F::Known;
  static constexpr int RESIDENT = 1, V = 16 / sizeof(T), G = FRONT<T>,
                       M = sizeof(State) / sizeof(A);
  static constexpr int LOADS = F::loads, COLUMNS = F::columns, OUT = F::outputs, SUMS = F::sums;
  static constexpr bool EARLY = SLOTS > 2;
  static constexpr u32 FULL = (1u << V) - 1;
  // Of the loads, then outputs: those whose bits are set in NARROW are of N, narrower than T.
  static HD constexpr bool is_narrow(int k) { return NARROW >> k & 1; }
  // Elements of a warp's part of an input; as many of T as have its bytes, and those of all.
  static constexpr int PART = 32 * HELD * V, LESS = PART - PART * int(sizeof(N)) / int(sizeof(T));
  static HD constexpr int place(int k) { return k * PART - ones(NARROW & ((1 << k) - 1)) * LESS; }
  static constexpr int ALL = LOADS * PART - ones(NARROW & ((1 << LOADS) - 1)) * LESS;
  static_assert(SUMS > 0 && OUT == 1 && LOADS == F::inputs && F::stages != TWICE, "see KeptRows");
  using Adder = SumsKept<A, SUMS, HELD, V>;

  struct Args : Operands<T, LOADS + COLUMNS, OUT>, Beside<A>, F {
    i64 rows;
    i32 n, pad;
    i64 step[LOADS + OUT + COLUMNS];  // from one element to the next: 1
    Walk<0, LOADS + OUT, i64> walk;
  };

  struct Place {
    i64 at[LOADS + OUT];
  };
  static DEVICE Place place_of(const Args& args, i64 number) {
    Place place;
    args.walk.template offsets<1>(number < args.rows ? number : args.rows - 1, place.at);
    return place;
  }

  // One of a warp's places on chip, and the turn it is in.
  struct Slot {
    int at;
    u32 phase;

    DEVICE Slot next() const {
      return at + 1 < SLOTS ? Slot{at + 1, phase} : Slot{0, phase ^ 1};
    }
  };
  struct Room {
    T* elements;
    u64* barriers;

    DEVICE Room(void* memory) {
      const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
      T* all = static_cast<T*>(memory);
      elements = all + warp * (SLOTS * ALL);
      barriers = reinterpret_cast<u64*>(all + warps * (SLOTS * ALL)) + warp * SLOTS;
    }
    DEVICE T* element(int slot, int k) const { return elements + slot * ALL + place(k); }
    // Where the lane's elements are once they have come.
    DEVICE const T* come(Slot slot) const {
      bulk_wait(barriers + slot.at, slot.phase);
      return element(slot.at, 0) + threadIdx.x % 32 * V;
    }
  };

  // The first element of the warp's part.
  static DEVICE i32 first() {
    const int warps = blockDim.x / 32, block = PARTS > 1 ? int(blockIdx.x % PARTS) : 0;
    return (block * warps + int(threadIdx.x) / 32) * PART;
  }

  // Asks for a row, as one lane of each warp does.
  static DEVICE void ask(const Args& args, const Room& room, i64 number, int slot) {
    if (number >= args.rows) return;
    const Place row = place_of(args, number);
    bulk_expect(room.barriers + slot, ALL * sizeof(T));
    UNROLL for (int k = 0; k < LOADS; ++k) {
      const T* const from = moved<N>(is_narrow(k), args.in[k], row.at[k] + first());
      const u32 nbytes = (is_narrow(k) ? PART - LESS : PART) * sizeof(T);
      bulk_copy(room.element(slot, k), from, nbytes, room.barriers + slot);
    }
  }

  // The lane's part of the columns: in registers, where sums leave some for it; or on chip, where
  // the accesses of neighbouring lanes lie beside each other. No other lane reads it.
  struct Columns {
    static constexpr bool AT_HAND =
        !CHIP && sizeof(C) <= sizeof(T) && (SUMS * HELD * V < 64 || (!EARLY && PARTS == 1));
    static constexpr int PIECE = lesser(int(16 / sizeof(C)), V), PIECES = V / PIECE;
    const C* from[COLUMNS];
    Vec<C, V> held[COLUMNS][AT_HAND ? HELD : 1];
    C* chip;

    DEVICE Columns(const Args& args, i32 own, void* memory) : chip(static_cast<C*>(memory)) {
      UNROLL for (int k = 0; k < COLUMNS; ++k) {
        from[k] = reinterpret_cast<const C*>(args.in[LOADS + k]) + own;
        UNROLL for (int h = 0; h < (CHIP || AT_HAND ? HELD : 0); ++h) {
          const Vec<C, V> v = read(k, h);
          if constexpr (CHIP) {
            UNROLL for (int j = 0; j < PIECES; ++j) {
              store<PIECE>(piece(k, h, j), cut<PIECE>(v, j * PIECE));
            }
          } else {
            held[k][h] = v;
          }
        }
      }
    }
    // How much of `memory` the columns of all lanes take.
    static DEVICE int size() { return CHIP ? COLUMNS * HELD * V * int(blockDim.x) : 0; }
    DEVICE C* piece(int k, int h, int j) const {
      const int number = (k * HELD + h) * PIECES + j;
      return chip + (number * int(blockDim.x) + int(threadIdx.x)) * PIECE;
    }
    DEVICE Vec<C, V> read(int k, int h) const {
      return fetch_column<C, V, VECTORS>(from[k] + h * 32 * V, 1, 0, V);
    }
    DEVICE Vec<C, V> at(int k, int h) const {
      if constexpr (AT_HAND) return held[k][h];
      if constexpr (!CHIP) return read(k, h);
      Vec<C, V> v;
      UNROLL for (int j = 0; j < PIECES; ++j) paste(v, j * PIECE, load<PIECE>(piece(k, h, j)));
      return v;
    }
  };
  // The lane's h-th vector of the k-th input. What a lane has of a narrower one begins earlier.
  static DEVICE void widen_load(const T* there, int k, int h, A (&x)[V]) {
    const T* const from = there + place(k);
    if (is_narrow(k)) {
      const int lane = threadIdx.x % 32;
      const N* const all = reinterpret_cast<const N*>(from - lane * V);
      widen(load<V>(all + lane * V + h * 32 * V), x);
    } else {
      widen(load<V>(from + h * 32 * V), x);
    }
  }
  // The same of a row and of the columns.
  static DEVICE void widen_all(
      const T* there, const Columns& column, int h, A (&x)[LOADS][V], A (&c)[COLUMNS + 1][V]) {
    UNROLL for (int k = 0; k < LOADS; ++k) widen_load(there, k, h, x[k]);
    UNROLL for (int k = 0; k < COLUMNS; ++k) widen(column.at(k, h), c[k]);
  }

  // What a lane has of the sums along a row.
  static DEVICE State taken(
      const Args& args, const T* there, const Columns& column, const Known& known) {
    const F& f = args;
    State s = F::template start<0>();
    UNROLL for (int h = 0; h < HELD; ++h) {
      A x[LOADS][V], c[COLUMNS + 1][V];
      widen_all(there, column, h, x, c);
      f.template take<0>(s, known, x, c, FULL);
    }
    return s;
  }

  // The first elements of a row, for a guess at its centre.
  static DEVICE Piece<T, N, G> look(const Args& args, i64 number) {
    Piece<T, N, G> front{};
    if constexpr (F::stages == CENTRED) {
      const i64 at = place_of(args, number).at[F::X];
      front.template fetch<VECTORS>(is_narrow(F::X), args.in[F::X], at, 1, 0, G);
    }
    return front;
  }
  static DEVICE Known guess(const Piece<T, N, G>& front) {
    Known known{};
    if constexpr (F::stages == CENTRED) {
      A x[G];
      front.widen(is_narrow(F::X), x);
      known.guess(x, G);
    }
    return known;
  }

  static DEVICE void finish(
      const Args& args, const T* there, const Columns& column, const Known& known, T* out,
      Adder& sums) {
    const F& f = args;
    UNROLL for (int h = 0; h < HELD; ++h) {
      A x[LOADS][V], c[COLUMNS + 1][V], y[1][V], t[SUMS + 1][V];
      widen_all(there, column, h, x, c);
      f.finish(known, x, c, FULL, y);
      f.share(known, x, t);
      put_either<N, VECTORS>(is_narrow(LOADS), ADD, out, h * 32 * V, 1, 0, V, y[0]);
      sums.add(h, t);
    }
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) f64 memory[];
    using Meet = Several<A, PARTS * 32 * M>;
    __shared__ Meet rooms[2];
    const F& f = args;
    const Room room(reinterpret_cast<C*>(memory) + Columns::size());
    const int lane = threadIdx.x % 32;
    const i32 own = first() + lane * V;
    const u32 step = gridDim.x / PARTS, line = blockIdx.x / PARTS;
    const A part = A(1) / A(args.n);
    if (lane == 0) {
      UNROLL for (int slot = 0; slot < SLOTS; ++slot) bulk_begin(room.barriers + slot);
      bulk_begun();
      UNROLL for (int slot = 0; slot < SLOTS; ++slot) ask(
          args, room, line + i64(slot) * step, slot);
    }
    __syncwarp();
    const Columns column(args, own, memory);
    Adder sums(nullptr);
    // Nobody reaches a block that is not there yet.
    if constexpr (PARTS > 1) cluster_sync();

    int turn = 0;
    const auto settle = [&](const T* there, Known& known) {
      f.template settle<0>(brought<PARTS, A, M>(rooms, turn), part, known);
      if constexpr (F::stages == CENTRED) {
        if (known.good()) return;
        known.correct();
        const State s = block_sums<PARTS>(taken(args, there, column, known), rooms, turn);
        f.template settle<0>(s, part, known);
      }
    };
    Piece<T, N, G> front = look(args, line);
    Known known{};
    const T* there = nullptr;
    Slot slot{0, 0};
    ROLLED for (i64 number = line; number < args.rows; number += step) {
      if (!EARLY || number == line) {
        known = guess(front);
        front = look(args, number + step);
        there = room.come(slot);
        bring<PARTS>(taken(args, there, column, known), rooms, turn);
        settle(there, known);
      }
      const bool more = EARLY && number + step < args.rows;
      const Slot next = slot.next();
      Known coming{};
      const T* then = nullptr;
      if (more) {
        coming = guess(front);
        front = look(args, number + 2 * i64(step));
        then = room.come(next);
        bring<PARTS>(taken(args, then, column, coming), rooms, turn);
      }
      const i64 at = place_of(args, number).at[LOADS] + own;
      T* out = const_cast<T*>(moved<N>(is_narrow(LOADS), args.out[0], at));
      finish(args, there, column, known, out, sums);
      __syncwarp();
      if (lane == 0) ask(args, room, number + i64(SLOTS) * step, slot.at);
      if (more) settle(then, coming);
      known = coming;
      there = then;
      slot = next;
    }
    sums.leave(args.beside + i64(line) * SUMS * args.n + own, args.n, 32 * V);
  }
};

}  // namespace baracuda
#endif
