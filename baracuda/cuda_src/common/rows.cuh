// Rows schedule: along one axis something is found out, and then every element is computed.
//
// A functor F<A> sees a row in stages. In each, every thread takes in the elements that it holds
// (`take`), what they made of it is joined over the row (`join`), and `settle` says what is known
// from then on; at last `finish` computes the outputs. It declares
// - `loads` and `inputs`: the rows that are read, and what is held of them (`merge`);
// - `columns`: vectors along the row that all rows share, such as weights, of type C;
// - `outputs`; `sums`: gradients of columns, to which each row has a `share`; `stages`: ONCE or
//   TWICE, or CENTRED around what its first elements say (of input X), again where they mislead.
// Rows may be LOSSES. Such a functor says what the `cost` of a row is where it has no outputs, else
// how the cotangent of that is to `pull` at them; `labelled` rows have an integer each.
//
// A thread holds HELD vectors of 16 bytes of each input; which elements, alignment does not say,
// but in the longest rows. Rows of a few vectors take some lanes of a warp (LANES), others a block
// (BLOCK); what a block does not hold it reads again (LONG).
// The outputs whose bits are set in ADD are added to. Of the loads, then outputs, those whose bits
// are set in NARROW are of N, which is narrower than T.
// Where rows are some planes each, columns are the channels' own, and a row leaves sums of its own.
// To a `numbered` functor bits behind those of what counts say what is left of it.
#pragma once
#include "indexed/policy.cuh"
#include "reduce.cuh"
#include "row.cuh"
#include "row_sums.cuh"
#include "sum_rows.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    class F, class T, Way WAY, int HELD, Access ACCESS, int LEFT, int ADD, int BY = BY_ELEMENTS,
    bool LOSSES = false, class C = T, class N = T, int NARROW = 0>
struct Rows {
  using A = Acc<T>;
  using State = typename F::State;
  using Known = typename F::Known;
  using Sums = typename Either<(LEFT & MASKED) != 0, const u8,
                               typename Either<(F::sums > 0), A, void>::type>::type;
  static constexpr int V = 16 / sizeof(T);
  static constexpr bool WIDE = ACCESS == VECTORS;
  static constexpr int LOADS = F::loads, IN = F::inputs, OUT = F::outputs, COLUMNS = F::columns;
  // Over rows, and of each row's planes.
  static constexpr int SUMS = BY == BY_ELEMENTS ? F::sums : 0, SHARES = F::sums - SUMS;
  static constexpr int K = LOADS + OUT + ((LEFT & MASKED) != 0);
  static constexpr bool NUMBERED = numbered<F>(0);
  static constexpr int WALKED = K + 2 * LOSSES + (BY == BY_ROWS) + NUMBERED;
  static constexpr bool COSTS = LOSSES && OUT == 0;
  static_assert(!NARROW || !LOSSES, "what rows cost is of T");
  // All elements of a vector that is read are kept.
  static constexpr bool WHOLE = WIDE && LEFT == NONE;
  static constexpr u32 FULL = (1u << V) - 1;
  // Stores past the caches pay where one array is read and one written.
  static constexpr bool STREAMS = WIDE && WAY != LANES && LOADS == 1 && OUT == 1 && !ADD;
  // Elements of a column that a vector has, and whether columns come with the row, which registers
  // have to allow: after a join they would be waited for again.
  static constexpr int OWN = BY == BY_PLANES ? 1 : V;
  static constexpr bool EAGER = WIDE && WAY != LONG && BY != BY_MIXED_PLANES && SUMS == 0 &&
                                COLUMNS > 0 && COLUMNS * HELD * OWN *
                                lesser(sizeof(C), sizeof(T)) <= 4 * V * int(sizeof(T));
  // 64 registers, 80 where more than rows is looked after, 128 for single elements and for losses
  // that are found in stages, 48 for small planes.
  static constexpr int RESIDENT =
      WAY != LANES                              ? 1
      : !WIDE || (LOSSES && F::stages == TWICE) ? 2
      : F::sums || (LEFT & MASKED) || BY == BY_ROWS ? 3
      : BY != BY_PLANES ? 4 : 5;
  using Adder =
      typename Either<SUMS == 0, NoSums, SumsOnChip<A, greater(SUMS, 1), HELD, V>>::type;

  struct Args : Operands<T, LOADS + COLUMNS, OUT>,
                Beside<Sums>,
                Each<LOSSES>,
                F,
                Together<LOSSES>,
                Planes<of_planes(BY)>,
                Beginning<NUMBERED> {
    i64 rows, ahead;  // and how many rows later is one that the L2 is asked for, 0 for none
    i32 n, log_lanes;
    i32 passing, pad;  // whether outputs are for nobody who comes soon
    Extent<u32> queries;  // causal: rows of a diagonal
    i32 before;           // and the elements that its first row keeps, less one
    i64 step[K + COLUMNS];
    Walk<0, WALKED, i64> walk;
  };

  static_assert(HELD * V <= 32, "a word says which elements count");

  using Row = RowPlace<WALKED>;

  static HD constexpr bool is_narrow(int k) { return NARROW >> k & 1; }
  static HD constexpr bool held_narrow(int k) { return LOADS == IN && is_narrow(k); }
  using Some = Piece<T, N, V>;

  template <int K> struct Held {
    Some x[K][HELD];
    typename Either<NUMBERED, u64, u32>::type kept;  // V bits for each vector
  };
  struct Whole : Held<IN> {
    Vec<C, OWN> columns[greater(COLUMNS, 1)][HELD];
  };
  static DEVICE u32 kept(const Whole& held, int h) {
    if constexpr (NUMBERED) return together<V>(held.kept, h);
    return WHOLE ? FULL : held.kept >> h * V & FULL;
  }

  static DEVICE u32 kept(const Args& args, const Row& row, i32 e) {
    if constexpr (WHOLE) return FULL;
    return counting<V, (LEFT & MASKED) != 0, K - 1>(args, row, e);
  }
  static DEVICE u32 kept_and_left(const Args& args, const Row& row, i32 e) {
    return kept(args, row, e) | staying<F, V, WIDE>(args, row.at[WALKED - 1] + e, args) << V;
  }

  // What a vector has of the k-th column.
  static DEVICE Vec<C, OWN> column(const Args& args, const Row& row, i32 e, int k) {
    const C* const each = reinterpret_cast<const C*>(args.in[LOADS + k]);
    if constexpr (!of_planes(BY)) {
      const i64 at = BY == BY_ROWS ? row.at[WALKED - 1 - NUMBERED] : 0;
      return fetch_column<C, V, ACCESS>(each + at, args.step[K + k], e, args.n);
    } else {
      Vec<C, OWN> own;
      UNROLL for (int i = 0; i < OWN; ++i) {
        const i32 place = e + i < args.n ? e + i : args.n - 1;
        const i64 channel = row.channel + args.plane.divide(u32(place));
        own.set(i, each[channel * args.step[K + k]]);
      }
      return own;
    }
  }

  // The h-th vector is at e.
  static DEVICE void columns(
      const Args& args, const Row& row, const Whole& held, int h, i32 e,
      A (&c)[COLUMNS + 1][V]) {
    UNROLL for (int k = 0; k < COLUMNS; ++k) {
      const Vec<C, OWN> own = EAGER ? held.columns[k][h] : column(args, row, e, k);
      UNROLL for (int i = 0; i < V; ++i) c[k][i] = widen(own, i % OWN);
    }
  }

  // What is held of the vectors that were loaded.
  static DEVICE void merge(const Some (&from)[LOADS], Some (&to)[IN]) {
    if constexpr (LOADS == IN) {
      UNROLL for (int k = 0; k < IN; ++k) to[k] = from[k];
    } else {
      A x[LOADS][V], y[IN][V];
      UNROLL for (int k = 0; k < LOADS; ++k) from[k].widen(is_narrow(k), x[k]);
      F::merge(x, y);
      UNROLL for (int k = 0; k < IN; ++k) narrow(y[k], to[k].own);
    }
  }

  template <int W>
  static DEVICE void load(const Args& args, const Row& row, int k, i32 e, Piece<T, N, W>& to) {
    to.template fetch<ACCESS>(is_narrow(k), args.in[k], row.at[k], args.step[k], e, row.end);
  }
  static DEVICE void fetch_all(const Args& args, const Row& row, i32 e, Some (&to)[IN]) {
    Some from[LOADS];
    UNROLL for (int k = 0; k < LOADS; ++k) load(args, row, k, e, from[k]);
    merge(from, to);
  }

  template <int S>
  static DEVICE void take(
      const Args& args, const Some (&v)[IN], const A (&c)[COLUMNS + 1][V], u32 keep,
      const Known& known, State& s) {
    const F& f = args;
    A x[IN][V];
    UNROLL for (int k = 0; k < IN; ++k) v[k].widen(held_narrow(k), x[k]);
    f.template take<S>(s, known, x, c, keep);
  }

  template <int S>
  static DEVICE void stage(
      const Args& args, const Row& row, const Whole& held, Rooms<State>* rooms, int& turn,
      Known& known) {
    const F& f = args;
    State s = F::template start<S>();
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = (row.rank + h * row.lanes) * V;
      if (e >= row.end) continue;
      Some v[IN];
      A c[COLUMNS + 1][V];
      UNROLL for (int k = 0; k < IN; ++k) v[k] = held.x[k][h];
      columns(args, row, held, h, e, c);
      take<S>(args, v, c, kept(held, h), known, s);
    }
    if constexpr (WAY == LONG) {
      for (i32 e = (row.rank + HELD * row.lanes) * V; e < row.end; e += row.lanes * V) {
        Some v[IN];
        A c[COLUMNS + 1][V];
        fetch_all(args, row, e, v);
        columns(args, row, held, 0, e, c);
        take<S>(args, v, c, kept_and_left(args, row, e), known, s);
      }
    }
    const auto join = joiner<S, State>(f, 0);
    if constexpr (WAY == LANES) {
      s = join_lanes(s, row.lanes, join);
    } else {
      s = join_block(s, F::template start<S>(), *rooms, turn, join);
    }
    f.template settle<S>(s, A(1) / A(args.n), known);
  }

  // The first elements of a row, for a guess at its centre.
  static constexpr int G = FRONT<T>;
  static DEVICE void guess(const Piece<T, N, G> (&front)[LOADS], i32 end, Known& known) {
    A x[LOADS][G], y[IN][G];
    UNROLL for (int k = 0; k < LOADS; ++k) front[k].widen(is_narrow(k), x[k]);
    if constexpr (LOADS != IN) F::merge(x, y);
    known.guess(LOADS != IN ? y[F::X] : x[F::X], greater(lesser(end, G), 1));
  }
  // Once more around the centre that was found, where the guess was bad. Rows of one warp go along
  // with each other and keep what they know.
  static DEVICE void again(
      const Args& args, const Row& row, const Whole& held, Rooms<State>* rooms, int& turn,
      Known& known) {
    const bool good = known.good();
    if constexpr (WAY == LANES) {
      if (__all_sync(~0u, good)) return;
      Known better = known;
      better.correct();
      stage<0>(args, row, held, rooms, turn, better);
      if (!good) known = better;
    } else if (!good) {
      known.correct();
      stage<0>(args, row, held, rooms, turn, known);
    }
  }

  static DEVICE void put_all(const Args& args, const Row& row, i32 e, A (&y)[greater(OUT, 1)][V]) {
    if constexpr (STREAMS) {
      if (args.passing) {
        Vec<T, V> v;
        narrow(y[0], v);
        return pass(args.out[0] + row.at[LOADS] + e, v);
      }
    }
    UNROLL for (int k = 0; k < OUT; ++k) put_either<N, ACCESS>(
        is_narrow(LOADS + k), ADD >> k & 1, args.out[k], row.at[LOADS + k], args.step[LOADS + k], e,
        row.written, y[k]);
  }

  // The outputs of a vector, and its share of the sums.
  static DEVICE void finish(
      const Args& args, const Row& row, i32 e, const Some (&v)[IN],
      const A (&c)[COLUMNS + 1][V], u32 keep, const Known& known, A (&t)[F::sums + 1][V]) {
    const F& f = args;
    A x[IN][V], y[greater(OUT, 1)][V];
    UNROLL for (int k = 0; k < IN; ++k) v[k].widen(held_narrow(k), x[k]);
    f.finish(known, x, c, keep, y);
    if constexpr (F::sums > 0) f.share(known, x, t);
    put_all(args, row, e, y);
  }

  // Where the sums of a block are in memory.
  static DEVICE A* line(const Args& args, int sum) {
    return args.beside + (i64(blockIdx.x) * SUMS + sum) * args.n;
  }

  static DEVICE Row row_of(const Args& args, i64 number, int lanes, int rank) {
    Row row;
    row.lanes = lanes;
    row.rank = rank;
    const bool there = number < args.rows;
    args.walk.template offsets<1>(there ? number : 0, row.at);
    row.written = row.end = there ? args.n : 0;
    row.channel = 0;
    if constexpr (of_planes(BY)) {
      const u32 group = there ? u32(number) : 0;
      row.channel = (group - args.groups.divide(group) * args.groups.size) * args.channels;
    }
    if constexpr ((LEFT & CAUSAL) != 0) {
      // Rows are fewer than 2^32 where there is a diagonal.
      const u32 q = u32(number) - args.queries.divide(u32(number)) * args.queries.size;
      const i64 keeps = i64(q) + args.before + 1;
      row.end = keeps < row.end ? (keeps > 0 ? i32(keeps) : 0) : row.end;
    }
    return row;
  }

  // What a thread holds of a row, as it is read.
  struct Loaded {
    Held<LOADS> all;
    Piece<T, N, G> front[LOADS];
  };
  static DEVICE Loaded load_row(const Args& args, const Row& row) {
    Loaded loaded;
    if constexpr (F::stages == CENTRED) {
      UNROLL for (int k = 0; k < LOADS; ++k) load(args, row, k, 0, loaded.front[k]);
    }
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = (row.rank + h * row.lanes) * V;
      UNROLL for (int k = 0; k < LOADS; ++k) load(args, row, k, e, loaded.all.x[k][h]);
    }
    return loaded;
  }

  static DEVICE void ask_ahead(const Args& args, const Row& row, i64 number) {
    if (number >= args.rows) return;
    i64 next[WALKED];
    args.walk.template offsets<1>(number, next);
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = (row.rank + h * row.lanes) * V;
      UNROLL for (int k = 0; k < LOADS; ++k) {
        if (e < row.end) prefetch_either<N, V>(is_narrow(k), args.in[k], next[k] + e);
      }
    }
  }

  static DEVICE void one_row(
      const Args& args, i64 number, const Row& row, const Loaded& loaded, Rooms<State>* rooms,
      int& turn, f64* room, Adder& sums, A& cost) {
    [[maybe_unused]] i64 label = 0;
    if constexpr (LOSSES) {
      if constexpr (F::labelled) label = entry_of(args.labels, row.at[K], args.flags & WIDE_LABELS);
    }

    Whole held;
    held.kept = 0;
    UNROLL for (int h = 0; h < HELD; ++h) {
      Some from[LOADS], to[IN];
      UNROLL for (int k = 0; k < LOADS; ++k) from[k] = loaded.all.x[k][h];
      merge(from, to);
      UNROLL for (int k = 0; k < IN; ++k) held.x[k][h] = to[k];
      const i32 e = (row.rank + h * row.lanes) * V;
      if constexpr (NUMBERED) held.kept |= apart<V>(kept_and_left(args, row, e)) << h * V;
      else if constexpr (!WHOLE) held.kept |= kept(args, row, e) << h * V;
      if constexpr (EAGER) {
        UNROLL for (int k = 0; k < COLUMNS; ++k) held.columns[k][h] = column(args, row, e, k);
      }
    }
    // While this row is computed, so that few blocks keep the memory busy.
    if constexpr (WAY == BLOCK && WIDE) {
      if (args.ahead) ask_ahead(args, row, number + args.ahead);
    }

    Known known{};
    if constexpr (F::stages == CENTRED) guess(loaded.front, row.end, known);
    stage<0>(args, row, held, rooms, turn, known);
    if constexpr (F::stages == TWICE) stage<1>(args, row, held, rooms, turn, known);
    if constexpr (F::stages == CENTRED) again(args, row, held, rooms, turn, known);

    if constexpr (COSTS) {
      if (number >= args.rows || row.rank) return;
      const F& f = args;
      A own = f.cost(known, label);
      if (args.flags & REDUCED) cost += own;
      else deliver_one(own, static_cast<T*>(args.costs), row.at[K + 1], args.flags & WIDE_LOSS);
    } else {
      if constexpr (LOSSES) {
        const F& f = args;
        const T* const all = static_cast<const T*>(args.costs);
        f.pull(known, label, widened(all, row.at[K + 1], args.flags & WIDE_LOSS) * A(args.part));
      }
      finish_all(args, row, number, held, known, room, sums);
    }
  }

  static DEVICE void finish_all(
      const Args& args, const Row& row, i64 number, const Whole& held, const Known& known,
      f64* room, Adder& sums) {
    A t[F::sums + 1][V];
    [[maybe_unused]] const PlaneShares<A, SHARES, HELD, V> shares{reinterpret_cast<A*>(room)};
    const int base = WAY == LANES ? int(threadIdx.x) / row.lanes * row.lanes * HELD : 0;
    UNROLL for (int h = 0; h < HELD; ++h) {
      const i32 e = (row.rank + h * row.lanes) * V;
      if (e >= row.written) continue;
      Some v[IN];
      A c[COLUMNS + 1][V];
      UNROLL for (int k = 0; k < IN; ++k) v[k] = held.x[k][h];
      columns(args, row, held, h, e, c);
      finish(args, row, e, v, c, kept(held, h), known, t);
      if constexpr (SUMS > 0) sums.add(h, t);
      if constexpr (SHARES > 0) shares.keep(base + row.rank + h * row.lanes, t);
    }
    if constexpr (SHARES > 0) {
      if constexpr (WAY == LANES) __syncwarp();
      else __syncthreads();
      shares.leave(args, row, number, base);
    }
    if constexpr (WAY == LONG) {
      for (i32 e = (row.rank + HELD * row.lanes) * V; e < row.written; e += row.lanes * V) {
        Some v[IN];
        A c[COLUMNS + 1][V];
        fetch_all(args, row, e, v);
        columns(args, row, held, 0, e, c);
        finish(args, row, e, v, c, kept_and_left(args, row, e), known, t);
        if constexpr (SUMS > 0) {
          UNROLL for (int s = 0; s < SUMS; ++s) {
            UNROLL for (int i = 0; i < V; ++i) {
              if (e + i < args.n) line(args, s)[e + i] += t[s][i];
            }
          }
        }
      }
    }
  }

  // Of what no thread holds.
  static DEVICE void clear(const Args& args, int lanes, int rank) {
    UNROLL for (int s = 0; s < SUMS; ++s) {
      for (i32 e = (rank + HELD * lanes) * V; e < args.n; e += lanes * V) {
        for (int i = 0; i < V && e + i < args.n; ++i) line(args, s)[e + i] = 0;
      }
    }
  }

  static DEVICE void run(const Args& args) {
    const int lanes = WAY == LANES ? 1 << args.log_lanes : int(blockDim.x);
    const int rank = WAY == LANES ? int(threadIdx.x) & (lanes - 1) : int(threadIdx.x);
    const int group = WAY == LANES ? int(threadIdx.x) >> args.log_lanes : 0;
    const int groups = WAY == LANES ? int(blockDim.x) >> args.log_lanes : 1;
    int turn = 0;
    Rooms<State>* meet = nullptr;
    if constexpr (WAY != LANES) {
      using Meet = Rooms<State>;
      __shared__ Meet rooms;
      meet = &rooms;
    }
    f64* room = nullptr;
    if constexpr (F::sums > 0) {
      extern __shared__ __align__(16) f64 memory[];
      room = memory;
    }
    [[maybe_unused]] A cost = 0;
    Adder sums(room);
    i64 number = i64(blockIdx.x) * groups + group;
    if constexpr (SUMS == 0 && !COSTS) {
      const Row row = row_of(args, number, lanes, rank);
      one_row(args, number, row, load_row(args, row), meet, turn, room, sums, cost);
    } else {
      if constexpr (WAY == LONG && SUMS > 0) clear(args, lanes, rank);
      for (i64 first = number - group; first < args.rows; first += i64(gridDim.x) * groups) {
        const Row row = row_of(args, first + group, lanes, rank);
        one_row(args, first + group, row, load_row(args, row), meet, turn, room, sums, cost);
      }
    }
    if constexpr (SUMS > 0) sums.leave(line(args, 0), args.n, lanes);
    if constexpr (COSTS) {
      if (!(args.flags & REDUCED)) return;
      if constexpr (WAY == LANES) cost = block_total(cost);
      if (threadIdx.x == 0) static_cast<A*>(args.costs)[blockIdx.x] = cost;
    }
  }
};

}  // namespace baracuda
#endif
