// Log-probabilities of the targets of rows of logits, entropies of the rows, or their gradient.
//
// Rows are shared as in cross_entropy.cu. A thread holds HELD vectors of 16 bytes, and a row is
// that of some lanes of a warp, of a block, or of one that reads again what it cannot hold; of the
// rest, a block keeps in shared memory what fits. A CLUSTER of blocks may share a row. Where rows
// lie side by side, ALONE, each has one thread. SPREAD: entropies are asked for, or pulled at.
#include "common/cluster.cuh"
#include "common/exponentials.cuh"
#include "common/reduce.cuh"
#include "common/report.cuh"
#include "common/row.cuh"

namespace baracuda {

constexpr int ALONE = 3;

template <
    bool GRADIENT, class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool SPREAD>
struct LogProbs {
  using A = Acc<T>;
  static constexpr Access ACCESS = WIDE ? VECTORS : STEPS;
  static constexpr int V = 16 / sizeof(T), TERMS = 2 + SPREAD;
  static constexpr bool BY_BLOCK = WAY == BLOCK || WAY == LONG, LOOPS = WAY == LONG || WAY == ALONE;
  static constexpr bool FEW = sizeof(T) == 8 || WAY == ALONE || !WIDE;
  static constexpr int RESIDENT = BY_BLOCK ? 1 : FEW ? 2 : 3;
  // Bytes of shared memory for what the blocks of a cluster tell each other.
  static constexpr int TOLD = CLUSTER > 1 ? CLUSTER * 32 : 0;

  struct Args {
    const T* logits;
    const void* target;
    T* dlogits;
    T* log_prob;  // and entropy: of each row or, of a GRADIENT, their cotangents
    T* entropy;
    f64 temperature, softcap;
    Report* listener;
    i64 classes, ignored, rows;
    i64 step[2];                       // of logits, dlogits
    i32 n, log_lanes, rounds, kept;    // rounds: of HELD vectors, and so many of these on chip
    u32 ticket, flags;
    Walk<0, 5, i64> walk;              // logits, target, dlogits, log_prob, entropy
  };
  enum : u32 { WIDE_TARGET = 1, WIDE_RESULT = 2 };

  // The largest logit, the sum of exponentials beside it, the sum of what logits exceed it by, each
  // times its exponential.
  using State = Several<A, TERMS>;
  using Loaded = Several<Vec<T, V>, HELD>;
  static DEVICE A nothing() { return -A(infinity()); }
  static DEVICE State start() {
    State s{};
    s.at[0] = nothing();
    return s;
  }
  static DEVICE A base(A most) { return most == nothing() ? A(0) : most; }

  struct Row {
    const T* x;
    i32 end, rank, lanes;
    A cap, inverse;  // of the cap, 0 for none
    A cool;          // the inverse of the temperature
    A rate;          // what a difference is multiplied by to be an exponent

    // Differences come first: a small temperature would magnify what rounding took of products.
    DEVICE A power(A over) const {
      if constexpr (sizeof(A) == 8) return quick_exponential(over * rate);
      else return exponential2(over * rate);
    }
    DEVICE A capped(A x) const { return cap > 0 ? cap * quick_hyperbolic_tangent(x * inverse) : x; }
  };

  // Nothing of what is infinitely far below the largest is nothing.
  static DEVICE A finite(A over, A power) { return power > 0 ? over : A(0); }
  // The same beside another largest logit.
  static DEVICE void rebase(const Row& row, State& s, A most) {
    const A over = s.at[0] - base(most), power = row.power(over);
    if constexpr (SPREAD) s.at[2] = power * fused(s.at[1], finite(over, power), s.at[2]);
    s.at[1] *= power;
    s.at[0] = most;
  }
  // Of all lanes: the largest first, so that each has one exponential.
  static DEVICE State across(const Row& row, State s, int lanes) {
    A most = s.at[0];
    for (int by = lanes / 2; by; by /= 2) most = larger(most, __shfl_xor_sync(~0u, most, by));
    rebase(row, s, most);
    for (int by = lanes / 2; by; by /= 2) {
      UNROLL for (int i = 1; i < TERMS; ++i) s.at[i] += __shfl_xor_sync(~0u, s.at[i], by);
    }
    return s;
  }

  // Of a vector that begins before the end.
  static DEVICE bool there(const Row& row, i32 e, int i) { return WIDE || e + i < row.end; }
  static DEVICE i32 element(const Row& row, i32 h) { return (row.rank + h * row.lanes) * V; }
  static DEVICE Vec<T, V> least() {
    A x[V];
    UNROLL for (int i = 0; i < V; ++i) x[i] = nothing();
    Vec<T, V> v;
    narrow(x, v);
    return v;
  }
  // Vectors from the h-th on, which are there (WHOLE) or not: such logits are smaller than any.
  template <bool WHOLE> static DEVICE Loaded fetch_all(const Args& args, const Row& row, i32 h) {
    Loaded to;
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = element(row, h + k);
      if constexpr (WHOLE && WIDE) to.at[k] = load<V>(row.x + e);
      else to.at[k] = fetch<V, ACCESS>(row.x, args.step[0], e, row.end, least());
    }
    return to;
  }

  static DEVICE void take(const Row& row, i32 h, const Loaded& v, State& s) {
    const bool caps = row.cap > 0;
    if (!caps) rebase(row, s, larger(s.at[0], largest(v.at)));
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = element(row, h + k);
      if (e >= row.end) continue;
      A x[V];
      widen(v.at[k], x);
      if (caps) {
        A most = s.at[0];
        UNROLL for (int i = 0; i < V; ++i) {
          x[i] = there(row, e, i) ? row.capped(x[i]) : nothing();
          most = larger(most, x[i]);
        }
        rebase(row, s, most);
      }
      // One thread that adds each to the sum of a whole row would drift.
      A sum = 0, spread = 0;
      const A from = base(s.at[0]);
      UNROLL for (int i = 0; i < V; ++i) {
        const A over = x[i] - from, power = row.power(over);
        sum += power;
        spread = fused(power, finite(over, power), spread);
      }
      s.at[1] += sum;
      if constexpr (SPREAD) s.at[2] += spread;
    }
  }

  // An element is -exp(x - most) * weight * (level + rise * (x - most)), and `hit` more where it is
  // the target, times the slope of the cap.
  struct Slope {
    A most, weight, level, rise, hit;
    i32 target;
  };
  static DEVICE void put_slopes(
      const Args& args, T* d, const Row& row, i32 h, const Loaded& v, const Slope& slope) {
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = element(row, h + k);
      if (e >= row.end) continue;
      A x[V], y[V];
      widen(v.at[k], x);
      UNROLL for (int i = 0; i < V; ++i) {
        x[i] = row.capped(x[i]);
        const A over = x[i] - slope.most, power = row.power(over);
        A pull = slope.level;
        if constexpr (SPREAD) pull = fused(slope.rise, finite(over, power), pull);
        y[i] = -(power * slope.weight) * pull;
        y[i] += e + i == slope.target ? slope.hit : A(0);
        const A curve = x[i] * row.inverse;
        if (row.cap > 0) y[i] *= 1 - curve * curve;
      }
      put<ACCESS, ADD>(d, args.step[1], e, args.n, y);
    }
  }

  static DEVICE void run(const Args& args) {
    if constexpr (CLUSTER > 1) cluster_arrive();
    const int block = int(blockIdx.x % CLUSTER);
    Row row;
    row.lanes = BY_BLOCK ? i32(blockDim.x) * CLUSTER : 1 << args.log_lanes;
    row.rank = BY_BLOCK ? i32(blockDim.x) * block + i32(threadIdx.x)
                        : i32(threadIdx.x) & (row.lanes - 1);
    const int groups = BY_BLOCK ? 1 : int(blockDim.x) >> args.log_lanes;
    const int group = BY_BLOCK ? 0 : int(threadIdx.x) >> args.log_lanes;
    const i64 number = i64(blockIdx.x / CLUSTER) * groups + group;
    const bool exists = number < args.rows, wide = args.flags & WIDE_RESULT;
    i64 at[5];
    args.walk.template offsets<1>(exists ? number : 0, at);

    i64 target = args.ignored;
    if (exists) target = entry_of(args.target, at[1], args.flags & WIDE_TARGET);
    Report* const listener = row.rank == 0 ? args.listener : nullptr;
    bool counts = target != args.ignored &&
                  valid(target, args.classes, listener, args.ticket, number);
    [[maybe_unused]] A first = 0, second = 0;
    if constexpr (GRADIENT) {
      if (counts) first = widened(args.log_prob, at[3], wide);
      if (SPREAD && counts) second = widened(args.entropy, at[4], wide);
      counts = counts && (first != 0 || second != 0);
    }
    // Rows that do not count are not read.
    row.x = args.logits + at[0];
    row.end = counts ? args.n : 0;
    row.cap = A(args.softcap);
    row.inverse = row.cap > 0 ? A(1) / row.cap : A(0);
    row.cool = A(1) / A(args.temperature);
    row.rate = sizeof(A) == 8 ? row.cool : row.cool * A(LOG2_E);

    // Each thread has the vectors of all rounds; it holds what comes behind them.
    const i32 rounds = LOOPS && counts ? args.rounds : 0, last = LOOPS ? args.rounds * HELD : 0;
    Loaded held = fetch_all<false>(args, row, last);
    State s = start();
    A goal = 0;  // the logit of the target, which the first thread of a row has
    if (!GRADIENT && counts && row.rank == 0) {
      goal = row.capped(widen(row.x[target * args.step[0]]));
    }
    extern __shared__ __align__(16) u32 chip[];
    [[maybe_unused]] Vec<T, V>* const room =
        reinterpret_cast<Vec<T, V>*>(chip + TOLD / 4) + threadIdx.x;
    i32 h = last;
    if constexpr (GRADIENT) {
      Loaded v = held;
      Vec<T, V>* to = room;
      ROLLED for (i32 round = 0;; ++round) {
        take(row, h, v, s);
        if (!LOOPS || round >= rounds) break;
        h = round * HELD;
        v = fetch_all<true>(args, row, h);
        if (round >= args.kept) continue;
        UNROLL for (int k = 0; k < HELD; ++k, to += blockDim.x) to[0] = v.at[k];
      }
    } else {
      // Nothing is kept: the next vectors are under way.
      ROLLED for (i32 round = 0;; ++round) {
        Loaded next;
        if (LOOPS && round < rounds) next = fetch_all<true>(args, row, round * HELD);
        take(row, h, held, s);
        if (!LOOPS || round >= rounds) break;
        h = round * HELD;
        held = next;
      }
    }
    const auto joined = [&](State s, int lanes) { return across(row, s, lanes); };
    if constexpr (BY_BLOCK) {
      using Meet = Rooms<State>;
      __shared__ Meet rooms;
      int turn = 0;
      s = across_block(s, start(), rooms, turn, joined);
      if constexpr (CLUSTER > 1) {
        State* const told = reinterpret_cast<State*>(chip);
        cluster_wait();
        if (threadIdx.x < CLUSTER) of_block(told, threadIdx.x)[block] = s;
        cluster_sync();
        s = joined(told[threadIdx.x % CLUSTER], CLUSTER);
      }
    } else {
      s = joined(s, row.lanes);
    }
    if (!exists) return;
    const A most = s.at[0], mean = SPREAD ? s.at[TERMS - 1] / s.at[1] : A(0);
    if constexpr (!GRADIENT) {
      if (row.rank != 0) return;
      const A log_sum = logarithm(s.at[1]);
      deliver_one(
          counts ? fused(goal - most, row.cool, -log_sum) : A(0), args.log_prob, at[3], wide);
      if constexpr (SPREAD) {
        deliver_one(counts ? fused(-mean, row.cool, log_sum) : A(0), args.entropy, at[4], wide);
      }
    } else {
      T* const d = args.dlogits + at[2];
      if (!counts) {
        A zero[V] = {};
        for (i32 h = 0; !ADD && element(row, h) < args.n; ++h) {
          put<ACCESS, ADD>(d, args.step[1], element(row, h), args.n, zero);
        }
        return;
      }
      const A rise = second * row.cool;
      const Slope slope{
          most, row.cool / s.at[1], fused(-rise, mean, first), rise, first * row.cool, i32(target)};
      const Vec<T, V>* from = room;
      h = last;
      ROLLED for (i32 round = 0;; ++round) {
        put_slopes(args, d, row, h, held, slope);
        if (!LOOPS || round >= rounds) break;
        h = round * HELD;
        if (round >= args.kept) {
          held = fetch_all<true>(args, row, h);
          continue;
        }
        UNROLL for (int k = 0; k < HELD; ++k, from += blockDim.x) held.at[k] = from[0];
      }
    }
  }
};

template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool SPREAD>
using LogProb = LogProbs<false, T, WAY, HELD, WIDE, ADD, CLUSTER, SPREAD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool SPREAD>
using LogProbBackward = LogProbs<true, T, WAY, HELD, WIDE, ADD, CLUSTER, SPREAD>;

}  // namespace baracuda
