// Cross entropy of rows of logits, its gradient, or both, with the row on chip in between.
//
// As in the rows schedule a thread holds HELD vectors of 16 bytes, and a row is that of some lanes
// of a warp, of a block, or of one that reads again what it cannot hold; of the rest, a block keeps
// in shared memory what fits. A CLUSTER of blocks may share a row. Where rows lie side by side,
// ALONE, each has one thread. A SOFT target is a row too: the probability of each class. Weights of
// WEIGHTED classes are read where they are needed: all rows share them, so caches have them.
#include "common/cluster.cuh"
#include "common/counts.cuh"
#include "common/exponentials.cuh"
#include "common/report.cuh"
#include "common/rows.cuh"
#include "common/total.cuh"

namespace baracuda {

constexpr int ALONE = 3;

template <
    bool LOSS, bool GRADIENT, bool SOFT, class T, int WAY, int HELD, bool WIDE, bool ADD,
    int CLUSTER, bool WEIGHTED = false>
struct Entropy {
  using A = Acc<T>;
  static constexpr Access ACCESS = WIDE ? VECTORS : STEPS;
  static constexpr int V = 16 / sizeof(T);
  static constexpr bool BY_BLOCK = WAY == BLOCK || WAY == LONG, LOOPS = WAY == LONG || WAY == ALONE;
  static constexpr bool FEW = sizeof(T) == 8 || WAY == ALONE || !WIDE;
  static constexpr int RESIDENT = BY_BLOCK ? 1 : FEW ? 2 : 3;
  static constexpr int ROWS = 1 + SOFT, TERMS = 3 + (SOFT || WEIGHTED);
  using Count = typename Either<WEIGHTED, A, i32>::type;
  // Bytes of shared memory for what the blocks of a cluster tell each other.
  static constexpr int TOLD = CLUSTER > 1 ? CLUSTER * 32 : 0;

  struct Weights {
    const T* weight;
  };
  struct None {};
  struct Args : Either<WEIGHTED, Weights, None>::type {
    const T* logits;
    const void* target;  // an index for each row or, where SOFT, T for each logit
    const T* dloss;
    T* dlogits;
    T* loss;           // of each row, unless they are added up:
    A* sums;           // by blocks
    const Count* counts;  // how many rows count or, where WEIGHTED, what, in parts; for means
    f64 label_smoothing, z_loss, softcap;
    Report* listener;
    i64 classes, ignored, rows;
    i64 step[3];       // of logits, dlogits and, where SOFT, target or, where WEIGHTED, weight
    i32 n, log_lanes, rounds, kept, parts;  // rounds: of HELD vectors, and so many of these on chip
    u32 ticket, flags, pad;
    Walk<0, 4, i64> walk;  // logits, target, dlogits; loss or dloss
  };
  enum : u32 {
    WIDE_TARGET = 1, REDUCED = 2, EQUAL_SHARES = 4, WIDE_LOSS = 8, GIVEN = 16, WIDE_DLOSS = 32,
    WIDE_WEIGHT = 64
  };

  // The largest logit, the sum of exponentials beside it, the sum of what logits exceed another
  // one by; where SOFT or WEIGHTED, that sum by probabilities or weights, and their own.
  using State = Several<A, TERMS>;
  static DEVICE A nothing() { return -A(infinity()); }
  static DEVICE State start() {
    State s{};
    s.at[0] = nothing();
    return s;
  }
  static DEVICE A base(A most) { return most == nothing() ? A(0) : most; }
  // The same beside another largest logit, which is what logits exceed where SOFT.
  static DEVICE void rebase(State& s, A most) {
    s.at[1] *= quick_exponential(s.at[0] - base(most));
    if constexpr (SOFT) s.at[2] = fused(s.at[3], base(s.at[0]) - base(most), s.at[2]);
    s.at[0] = most;
  }
  // Of all lanes: the largest first, so that each has one exponential.
  static DEVICE State across(State s, int lanes) {
    A most = s.at[0];
    for (int by = lanes / 2; by; by /= 2) most = larger(most, __shfl_xor_sync(~0u, most, by));
    rebase(s, most);
    for (int by = lanes / 2; by; by /= 2) {
      UNROLL for (int i = 1; i < TERMS; ++i) s.at[i] += __shfl_xor_sync(~0u, s.at[i], by);
    }
    return s;
  }

  struct Row {
    const T* x;
    const T* t;
    i32 end, rank, lanes;
    A cap, inverse;  // of the cap, 0 for none
    A from;          // what logits are compared with where targets are smoothed
    A keep, spread;  // what is left of a probability, and what each class gets
    bool smooth, plain;  // plain: logits are neither capped nor added up
  };

  static DEVICE A weight_of(const Args& args, i64 c) {
    return widened(args.weight, c * args.step[2], args.flags & WIDE_WEIGHT);
  }

  static DEVICE A cap(const Row& row, A x) {
    return row.cap * quick_hyperbolic_tangent(x * row.inverse);
  }
  static DEVICE A capped(const Row& row, A x) { return row.cap > 0 ? cap(row, x) : x; }
  // Of a vector that begins before the end.
  static DEVICE bool there(const Row& row, i32 e, int i) { return WIDE || e + i < row.end; }
  static DEVICE i32 element(const Row& row, i32 h) { return (row.rank + h * row.lanes) * V; }

  struct Loaded {
    Vec<T, V> x[HELD], t[HELD];
  };
  template <bool WHOLE>
  static DEVICE Vec<T, V> fetch_one(
      const Row& row, const T* p, i64 step, i32 e, const Vec<T, V>& none) {
    if constexpr (WHOLE && WIDE) return load<V>(p + e);
    return fetch<V, ACCESS>(p, step, e, row.end, none);
  }
  // Vectors from the h-th on, which are there (WHOLE) or not: such logits are smaller than any.
  template <bool WHOLE> static DEVICE Loaded fetch_all(const Args& args, const Row& row, i32 h) {
    Loaded to;
    const i32 first = element(row, h), step = row.lanes * V;
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = first + k * step;
      to.x[k] = fetch_one<WHOLE>(row, row.x, args.step[0], e, least());
      if constexpr (SOFT) to.t[k] = fetch_one<WHOLE>(row, row.t, args.step[2], e, {});
    }
    return to;
  }
  static DEVICE Vec<T, V> least() {
    A x[V];
    UNROLL for (int i = 0; i < V; ++i) x[i] = nothing();
    Vec<T, V> v;
    narrow(x, v);
    return v;
  }
  static DEVICE A probability(const Row& row, const Vec<T, V>& t, int i) {
    return fused(widen(t, i), row.keep, row.spread);
  }

  // One thread that adds up a whole row would drift, by 7e-5 over 5690 equal probabilities: what
  // roundings of the sum took is `lost`, and added the next time (Kahan). A lane adds up few.
  static DEVICE void add_term(A x, A& sum, A& lost) {
    if constexpr (WAY != ALONE) {
      sum += x;
      return;
    }
    const A term = x - lost, next = sum + term, gone = (next - sum) - term;
    lost = gone - gone == 0 ? gone : A(0);
    sum = next;
  }

  // What probabilities of a vector make of its logits.
  static DEVICE void weigh(
      const Row& row, i32 e, const A (&x)[V], const Vec<T, V>& t, State& s, A (&lost)[2]) {
    UNROLL for (int i = 0; i < V; ++i) {
      if (e + (WIDE ? 0 : i) >= row.end) continue;
      const A p = probability(row, t, i);
      const A over = x[i] - base(s.at[0]);
      if constexpr (WAY == ALONE) add_term(p * over, s.at[2], lost[0]);
      else s.at[2] = fused(p, over, s.at[2]);
      add_term(p, s.at[3], lost[1]);
    }
  }
  static DEVICE void take(
      const Args& args, const Row& row, i32 h, const Loaded& v, State& s, A (&lost)[2]) {
    A x[V];
    const A most = larger(s.at[0], largest(v.x)), beside = base(most);
    if (row.plain && Near<A>::takes(beside)) {
      const Near<A> near(beside);
      rebase(s, most);
      A sum = 0;
      UNROLL for (int k = 0; k < HELD; ++k) {
        widen(v.x[k], x);
        UNROLL for (int i = 0; i < V; ++i) sum += near(x[i]);
        if constexpr (SOFT) weigh(row, element(row, h + k), x, v.t[k], s, lost);
      }
      s.at[1] = fused(sum, near.rest, s.at[1]);
      return;
    }
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = element(row, h + k);
      if (e >= row.end) continue;
      A most = s.at[0];
      widen(v.x[k], x);
      if (row.cap > 0) {
        UNROLL for (int i = 0; i < V; ++i) x[i] = there(row, e, i) ? cap(row, x[i]) : nothing();
      }
      UNROLL for (int i = 0; i < V; ++i) {
        most = larger(most, x[i]);
        if constexpr (WEIGHTED) {
          if (!row.smooth || !there(row, e, i)) continue;
          const A w = weight_of(args, e + i);
          add_term(w * (x[i] - row.from), s.at[2], lost[0]);
          add_term(w, s.at[3], lost[1]);
        } else if (!SOFT && there(row, e, i)) {
          add_term(x[i] - row.from, s.at[2], lost[0]);
        }
      }
      rebase(s, most);
      UNROLL for (int i = 0; i < V; ++i) s.at[1] += quick_exponential(x[i] - base(most));
      if constexpr (SOFT) weigh(row, e, x, v.t[k], s, lost);
    }
  }

  // What becomes of an element: weight * exp(x - most) - spread, `hit` less at the target; where
  // SOFT, `hit` times its probability less. WEIGHTED classes have their share of `whole` of it.
  struct Slope {
    Near<A> near;
    A most, weight, spread, hit, whole;
    i32 target;
    bool plain;
  };

  template <bool PLAIN>
  static DEVICE void slopes(
      const Args& args, const Row& row, i32 e, const Vec<T, V>& v, const Vec<T, V>& t,
      const Slope& slope, A (&y)[V]) {
    A x[V];
    widen(v, x);
    if (!PLAIN && row.cap > 0) {
      UNROLL for (int i = 0; i < V; ++i) x[i] = cap(row, x[i]);
    }
    UNROLL for (int i = 0; i < V; ++i) {
      const A power = PLAIN ? slope.near(x[i]) : quick_exponential(x[i] - slope.most);
      A less = SOFT ? slope.hit * probability(row, t, i) : slope.spread;
      if constexpr (WEIGHTED) {
        if (!PLAIN && row.smooth && there(row, e, i)) less *= weight_of(args, e + i) / slope.whole;
      }
      // Of two products a compiler would fuse either.
      y[i] = fused(power, slope.weight, -less);
    }
    // One vector of a row has its target.
    if (!SOFT && u32(slope.target - e) < u32(V)) {
      UNROLL for (int i = 0; i < V; ++i) y[i] -= e + i == slope.target ? slope.hit : A(0);
    }
    if (!PLAIN && row.cap > 0) {
      UNROLL for (int i = 0; i < V; ++i) {
        const A curve = x[i] * row.inverse;
        y[i] *= 1 - curve * curve;
      }
    }
  }
  template <bool PLAIN>
  static DEVICE void put_slopes(
      const Args& args, T* d, const Row& row, i32 h, const Loaded& v, const Slope& slope) {
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = element(row, h + k);
      A y[V];
      if (e >= row.end) continue;
      slopes<PLAIN>(args, row, e, v.x[k], v.t[k], slope, y);
      put_vector(args, d, e, y);
    }
  }
  static DEVICE void put_vector(const Args& args, T* d, i32 e, A (&x)[V]) {
    if constexpr (WIDE) {
      put<ADD>(d + e, x);
    } else {
      UNROLL for (int i = 0; i < V; ++i) {
        A one[1] = {x[i]};
        if (e + i < args.n) put<ADD>(d + (e + i) * args.step[1], one);
      }
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
    const bool exists = number < args.rows;
    i64 at[4];
    args.walk.template offsets<1>(exists ? number : 0, at);
    const bool reduced = args.flags & REDUCED;

    i64 target = args.ignored;
    bool counts = exists;
    if constexpr (!SOFT) {
      if (exists) target = entry_of(args.target, at[1], args.flags & WIDE_TARGET);
      Report* const listener = row.rank == 0 ? args.listener : nullptr;
      counts = target != args.ignored &&
               valid(target, args.classes, listener, args.ticket, number);
    }
    // Rows that do not count are not read.
    const A smooth = A(args.label_smoothing), z = A(args.z_loss);
    row.x = args.logits + at[0];
    row.t = static_cast<const T*>(args.target) + (SOFT ? at[1] : 0);
    row.end = counts ? args.n : 0;
    row.cap = A(args.softcap);
    row.inverse = row.cap > 0 ? A(1) / row.cap : A(0);
    row.smooth = smooth > 0;
    row.plain = !(row.cap > 0) && (SOFT || !row.smooth);
    row.from = 0;
    row.keep = 1 - smooth;
    row.spread = row.smooth ? smooth / A(args.n) : A(0);

    // Each thread has the vectors of all rounds; it holds what comes behind them.
    const i32 rounds = LOOPS && counts ? args.rounds : 0, last = LOOPS ? args.rounds * HELD : 0;
    Loaded held = fetch_all<false>(args, row, last);
    [[maybe_unused]] A share = 0, whole = 1, own = 1;
    if constexpr (GRADIENT) {
      const bool given = exists && (!LOSS || args.flags & GIVEN);
      share = given ? widened(args.dloss, reduced ? 0 : at[3], args.flags & WIDE_DLOSS) : A(1);
      if (WEIGHTED && args.parts) whole = A(all_of(args.counts, args.parts));
      else if (args.parts) share = share / A(all_of(args.counts, args.parts));
      if (SOFT && args.flags & EQUAL_SHARES) share = share / A(args.rows);
    }
    State s = start();
    if constexpr (WEIGHTED) {
      if (counts) own = weight_of(args, target);
    }
    A lost[2] = {};
    A goal = 0;  // the logit of the target, which the first thread of a row has
    if (counts && !SOFT) {
      if (LOSS && row.rank == 0) goal = capped(row, widen(row.x[target * args.step[0]]));
      const A first = row.smooth ? capped(row, widen(row.x[0])) : A(0);
      if (first - first == 0) row.from = first;
    }
    extern __shared__ __align__(16) u32 chip[];
    Vec<T, V>* const room = reinterpret_cast<Vec<T, V>*>(chip + TOLD / 4) + threadIdx.x;
    i32 h = last;
    if constexpr (GRADIENT) {
      Loaded v = held;
      Vec<T, V>* to = room;
      ROLLED for (i32 round = 0;; ++round) {
        take(args, row, h, v, s, lost);
        if (!LOOPS || round >= rounds) break;
        h = round * HELD;
        v = fetch_all<true>(args, row, h);
        if (round >= args.kept) continue;
        UNROLL for (int k = 0; k < HELD; ++k, to += ROWS * blockDim.x) {
          to[0] = v.x[k];
          if constexpr (SOFT) to[blockDim.x] = v.t[k];
        }
      }
    } else {
      // Nothing is kept: the next vectors are under way.
      ROLLED for (i32 round = 0;; ++round) {
        Loaded next;
        if (LOOPS && round < rounds) next = fetch_all<true>(args, row, round * HELD);
        take(args, row, h, held, s, lost);
        if (!LOOPS || round >= rounds) break;
        h = round * HELD;
        held = next;
      }
    }
    if constexpr (BY_BLOCK) {
      using Meet = Rooms<State>;
      __shared__ Meet rooms;
      int turn = 0;
      s = across_block(s, start(), rooms, turn, across);
      if constexpr (CLUSTER > 1) {
        State* const told = reinterpret_cast<State*>(chip);
        cluster_wait();
        if (threadIdx.x < CLUSTER) of_block(told, threadIdx.x)[block] = s;
        cluster_sync();
        s = across(told[threadIdx.x % CLUSTER], CLUSTER);
      }
    } else {
      s = across(s, row.lanes);
    }

    // Relative to the largest logit, so that nothing large cancels.
    const A most = s.at[0], log_sum = logarithm(s.at[1]), norm = most + log_sum;
    if constexpr (LOSS) {
      A hit = WEIGHTED ? own * (goal - most) : goal - most;
      if (row.smooth) {
        A mean = s.at[2] / A(args.n) + (row.from - most);
        if constexpr (WEIGHTED) mean = fused(s.at[3], row.from - most, s.at[2]) / A(args.n);
        hit = fused(hit, 1 - smooth, mean * smooth);
      }
      A loss = log_sum - hit;
      if constexpr (SOFT) loss = fused(log_sum, s.at[3], -s.at[2]);
      if constexpr (WEIGHTED) {
        loss = fused(log_sum, fused(s.at[3], row.spread, own * row.keep), -hit);
      }
      if (z > 0) loss = fused(WEIGHTED ? norm * z * own : norm * z, norm, loss);
      if (!counts) loss = 0;
      if (!reduced) {
        if (exists && row.rank == 0) deliver_one(loss, args.loss, at[3], args.flags & WIDE_LOSS);
      } else if constexpr (BY_BLOCK) {
        if (row.rank == 0) args.sums[blockIdx.x / CLUSTER] = loss;
      } else {
        const A total = block_total(row.rank == 0 ? loss : A(0));
        if (threadIdx.x == 0) args.sums[blockIdx.x] = total;
      }
    }
    if constexpr (GRADIENT) {
      if (!exists) return;
      T* const d = args.dlogits + at[2];
      if (!counts) {
        A zero[V] = {};
        for (i32 h = 0; !ADD && element(row, h) < args.n; ++h) {
          put_vector(args, d, element(row, h), zero);
        }
        return;
      }
      A pull = A(1);
      if constexpr (SOFT) pull = s.at[3];
      // A weight by the sum: a quotient by a sum that is tiny overflows.
      if (WEIGHTED) own = own / whole;
      if (WEIGHTED) pull = fused(s.at[TERMS - 1] / whole, row.spread, own * row.keep);
      if (z > 0) pull += WEIGHTED ? 2 * z * norm * own : 2 * z * norm;
      const Near<A> near(most);
      const bool plain = (WEIGHTED ? row.plain : !(row.cap > 0)) && Near<A>::takes(most);
      const A weight = share / s.at[1] * pull;
      const Slope slope{
          near, most, plain ? weight * near.rest : weight, share * row.spread,
          SOFT ? share : WEIGHTED ? share * (row.keep * own) : share * row.keep, whole, i32(target),
          plain};
      const Vec<T, V>* from = room;
      h = last;
      ROLLED for (i32 round = 0;; ++round) {
        if (slope.plain) put_slopes<true>(args, d, row, h, held, slope);
        else put_slopes<false>(args, d, row, h, held, slope);
        if (!LOOPS || round >= rounds) break;
        h = round * HELD;
        if (round >= args.kept) {
          held = fetch_all<true>(args, row, h);
          continue;
        }
        UNROLL for (int k = 0; k < HELD; ++k, from += ROWS * blockDim.x) {
          held.x[k] = from[0];
          if constexpr (SOFT) held.t[k] = from[blockDim.x];
        }
      }
    }
  }
};

template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool WEIGHTED = false>
using CrossEntropy = Entropy<true, false, false, T, WAY, HELD, WIDE, ADD, CLUSTER, WEIGHTED>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool WEIGHTED = false>
using CrossEntropyBackward =
    Entropy<false, true, false, T, WAY, HELD, WIDE, ADD, CLUSTER, WEIGHTED>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool WEIGHTED = false>
using CrossEntropyWithGradient =
    Entropy<true, true, false, T, WAY, HELD, WIDE, ADD, CLUSTER, WEIGHTED>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using SoftCrossEntropy = Entropy<true, false, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using SoftCrossEntropyBackward = Entropy<false, true, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using SoftCrossEntropyWithGradient = Entropy<true, true, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;

}  // namespace baracuda
