// Negative log-likelihood: of each row one element, and a gradient that is 0 but there.
#include "common/index.cuh"
#include "common/reduce.cuh"
#include "common/report.cuh"
#include "common/vec.cuh"

namespace baracuda {

// WIDE_TARGET: of 64 bits. EACH: of every row its own. COSTS: not its weight alone. COUNTED: what
// all count, where parts have that. DELIVERS: of one block, whose sums are those of all.
enum : u32 {
  WIDE_TARGET = 1, EACH = 2, WEIGHTED = 4, COSTS = 8, MEAN = 16, COUNTED = 32, WIDE_LOSS = 64,
  DELIVERS = 128
};

// The loss of all rows, of what they cost and what they count.
template <class T> DEVICE void deliver_loss(const Several<Acc<T>, 2>& sum, T* loss, u32 flags) {
  const Acc<T> total = flags & MEAN ? sum.at[0] / sum.at[1] : sum.at[0];
  deliver_one(total, loss, 0, flags & WIDE_LOSS);
}

// Targets, and what they count.
template <class T> struct Targets {
  const void* target;
  const T* weight;
  Report* listener;
  i64 classes, ignored, weight_step;
  u32 ticket, flags;

  DEVICE RawEntry ask(i64 at) const { return raw_entry(target, at, flags & WIDE_TARGET); }
  DEVICE i64 number(RawEntry raw) const { return entry_of(raw, flags & WIDE_TARGET); }
  DEVICE i64 fetch(i64 at) const { return entry_of(target, at, flags & WIDE_TARGET); }
  // Whether a row counts; whoever reports what is no class says so.
  DEVICE bool counts(i64 t, bool reports, i64 row) const {
    return t != ignored && valid(t, classes, reports ? listener : nullptr, ticket, row);
  }
  DEVICE Acc<T> share(i64 t) const {
    return flags & WEIGHTED ? widen(weight[t * weight_step]) : Acc<T>(1);
  }
};

// What rows cost, and what they count. A block takes a run of rows that its number fixes; unless
// EACH row keeps its own, it leaves the sums of both.
template <class T> struct NllLoss {
  using A = Acc<T>;
  using Both = Several<A, 2>;
  static constexpr int RESIDENT = 4, DEPTH = 4;

  struct Args {
    const T* x;
    T* loss;
    A* sums;
    Targets<T> targets;
    i64 rows, run, step;   // step: from class to class
    Walk<0, 3, i64> walk;  // x, target, loss
  };

  static DEVICE void run(const Args& args) {
    const u32 flags = args.targets.flags;
    const i64 begin = i64(blockIdx.x) * args.run;
    const i64 end = begin + args.run < args.rows ? begin + args.run : args.rows;
    Both sum{};
    for (i64 first = begin + threadIdx.x; first < end; first += i64(blockDim.x) * DEPTH) {
      i64 at[DEPTH][3], t[DEPTH];
      RawEntry raw[DEPTH];
      T x[DEPTH];
      bool counts[DEPTH];
      // The last row again where there are fewer: no branch lies between two loads.
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        args.walk.template offsets<1>(lesser(first + d * i64(blockDim.x), end - 1), at[d]);
        raw[d] = args.targets.ask(at[d][1]);
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const bool there = first + d * i64(blockDim.x) < end;
        t[d] = there ? args.targets.number(raw[d]) : args.targets.ignored;
        counts[d] = t[d] != args.targets.ignored && within(t[d], args.targets.classes);
        x[d] = T{};
        if (counts[d] && flags & COSTS) x[d] = args.x[at[d][0] + t[d] * args.step];
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        args.targets.counts(t[d], true, first + d * i64(blockDim.x));
      }
      UNROLL for (int d = 0; d < DEPTH; ++d) {
        const A share = counts[d] ? args.targets.share(t[d]) : A(0);
        const A cost = counts[d] ? -widen(x[d]) * share : A(0);
        sum.at[0] += cost;
        sum.at[1] += share;
        if (flags & EACH && first + d * i64(blockDim.x) < end) {
          deliver_one(cost, args.loss, at[d][2], flags & WIDE_LOSS);
        }
      }
    }
    if (flags & EACH) return;
    using Meet = Rooms<Both>;
    __shared__ Meet rooms;
    int turn = 0;
    sum = join_block(sum, Both{}, rooms, turn, Added<A, 2>{});
    if (threadIdx.x) return;
    if (flags & DELIVERS) return deliver_loss(sum, args.loss, flags);
    args.sums[2 * i64(blockIdx.x)] = sum.at[0];
    args.sums[2 * i64(blockIdx.x) + 1] = sum.at[1];
  }
};

// One block adds up what the others left: what all rows cost, that by what they count,
// or the count.
template <class T> struct NllTotal {
  using A = Acc<T>;
  using Both = Several<A, 2>;
  static constexpr int RESIDENT = 1;

  struct Args {
    const A* sums;
    T* loss;
    i32 count;
    u32 flags;
  };

  static DEVICE void run(const Args& args) {
    Both sum{};
    for (i32 i = i32(threadIdx.x); i < args.count; i += i32(blockDim.x)) {
      sum.at[0] += args.sums[2 * i];
      sum.at[1] += args.sums[2 * i + 1];
    }
    using Meet = Rooms<Both>;
    __shared__ Meet rooms;
    int turn = 0;
    sum = join_block(sum, Both{}, rooms, turn, Added<A, 2>{});
    if (threadIdx.x) return;
    if (args.flags & COUNTED) return narrow(sum.at[1], args.loss[1]);
    deliver_loss(sum, args.loss, args.flags);
  }
};

// The gradient, zeros and slopes in one stream of writes: in vectors of V classes, of which a
// thread takes DEPTH of one row, 2^run lanes beside each other; or, ACROSS rows that lie beside
// each other, of V rows, of which a thread takes `run` classes.
template <class T, int V, bool ACROSS, class I, bool ADD> struct NllLossBackward {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr int RESIDENT = 4, DEPTH = 4;

  struct Args {
    const T* dloss;
    T* dx;
    const A* sums;
    Targets<T> targets;
    i32 parts, run;
    I items, step;         // of threads; step: from class to class
    I beside[2];           // and from row to row, of dloss and target
    Extent<U> vectors;     // of a row; or of rows beside each other, for each run of classes
    Extent<U> runs;        // of the vectors of a row, or of classes
    Walk<0, 3, I> walk;    // dloss, target, dx
  };

  // What all rows count, of up to 64 parts.
  static DEVICE A total(const Args& args) {
    const int lane = threadIdx.x % 32;
    Several<A, 1> sum{};
    for (int i = lane; i < args.parts; i += 32) sum.at[0] += args.sums[2 * i + 1];
    return join_lanes(sum, 32, Added<A, 1>{}).at[0];
  }

  static DEVICE A slope(const Args& args, i64 at, i64 target, A whole) {
    const A dloss = widened(args.dloss, at, args.targets.flags & WIDE_LOSS);
    if (!(args.targets.flags & WEIGHTED)) return -(dloss / whole);
    // The weight by the sum: a quotient by a sum that is tiny, as weights may be, overflows.
    return -dloss * (args.targets.share(target) / whole);
  }

  static DEVICE void along(const Args& args, I thread, A whole) {
    const I lanes = I(1) << args.run, unit = thread >> args.run;
    const I row = I(args.runs.divide(U(unit))), chunk = unit - row * I(args.runs.size);
    const I first = chunk * lanes * DEPTH + (thread & (lanes - 1));
    I at[3];
    args.walk.template offsets<1>(row, at);
    const i64 target = args.targets.fetch(at[1]);
    // The vector that has the target's class, and whether it is one of this thread's.
    const bool counts = args.targets.counts(target, first == 0, row);
    const I hit = counts ? I(target / V) : I(-1), from = hit - first;
    const bool here = from >= 0 && (from & (lanes - 1)) == 0 && from < lanes * DEPTH;
    const A found = here ? slope(args, at[0], target, whole) : A(0);
    T* const dx = args.dx + at[2];
    UNROLL for (int d = 0; d < DEPTH; ++d) {
      const I vector = first + d * lanes;
      if (vector >= I(args.vectors.size) || (ADD && vector != hit)) continue;
      A y[V];
      UNROLL for (int v = 0; v < V; ++v) {
        y[v] = vector == hit && target % V == v ? found : A(0);
      }
      put<ADD>(dx + vector * V * args.step, y);
    }
  }

  static DEVICE void across(const Args& args, I thread, A whole) {
    const I outer = I(args.vectors.divide(U(thread)));
    const I vector = thread - outer * I(args.vectors.size);
    const I group = I(args.runs.divide(U(outer)));
    const I begin = (outer - group * I(args.runs.size)) * args.run;
    const I row = (group * I(args.vectors.size) + vector) * V;
    I at[3];
    args.walk.template offsets<1>(row, at);
    // From the first class on; of what is elsewhere, and of rows that do not count, before it.
    I local[V];
    A slopes[V];
    RawEntry raw[V];
    UNROLL for (int r = 0; r < V; ++r) raw[r] = args.targets.ask(at[1] + r * args.beside[1]);
    UNROLL for (int r = 0; r < V; ++r) {
      const i64 target = args.targets.number(raw[r]);
      const bool counts = args.targets.counts(target, begin == 0, row + r);
      const i64 from = target - begin;
      const bool here = counts && u64(from) < u64(args.run);
      local[r] = here ? I(from) : I(-1);
      slopes[r] = here ? slope(args, at[0] + r * args.beside[0], target, whole) : A(0);
    }
    T* const dx = args.dx + at[2] + begin * args.step;
    const i64 left = args.targets.classes - begin;
    const I many = left < args.run ? I(left) : I(args.run);
    for (I c = 0; c < many; ++c) {
      A y[V];
      bool hit = false;
      UNROLL for (int v = 0; v < V; ++v) {
        y[v] = local[v] == c ? slopes[v] : A(0);
        hit |= local[v] == c;
      }
      if (!ADD || hit) put<ADD>(dx + c * args.step, y);
    }
  }

  static DEVICE void run(const Args& args) {
    const I thread = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    const A whole = args.parts ? total(args) : A(1);
    if (thread >= args.items) return;
    if constexpr (ACROSS) across(args, thread, whole);
    else along(args, thread, whole);
  }
};

}  // namespace baracuda
