// Cross entropy of rows of logits, its gradient, or both, with the row on chip in between.
//
// A SOFT target is a row too: the probability of each class. Weights of WEIGHTED classes are read
// where they are needed: all rows share them, so caches have them. METRICS beside the loss: where
// the logit of each row is largest, and whether that is the target.
#include "common/counts.cuh"
#include "common/exponentials.cuh"
#include "common/logit_rows.cuh"
#include "common/report.cuh"
#include "common/total.cuh"

namespace baracuda {

template <
    bool LOSS, bool GRADIENT, bool SOFT, class T, int WAY, int HELD, bool WIDE, bool ADD,
    int CLUSTER, bool WEIGHTED = false, bool METRICS = false>
struct Entropy : LogitRows<T, WAY, HELD, WIDE, CLUSTER, 1 + SOFT, 1> {
  using Rows = LogitRows<T, WAY, HELD, WIDE, CLUSTER, 1 + SOFT, 1>;
  using A = typename Rows::A;
  using Share = typename Rows::Share;
  using Loaded = typename Rows::Loaded;
  static constexpr int V = Rows::V, SUMS = 3 + (SOFT || WEIGHTED), TERMS = SUMS + 2 * METRICS;
  using Count = typename Either<WEIGHTED, A, i32>::type;

  struct Weights {
    const T* weight;
  };
  struct Metrics {
    A* hits;  // sums of accuracies by blocks, unless each row has its own:
    T* accuracy;
    void* top;
  };
  struct Unweighted {};
  struct Unmeasured {};
  struct Args : Either<WEIGHTED, Weights, Unweighted>::type,
                Either<METRICS, Metrics, Unmeasured>::type {
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
    Walk<0, 4 + 2 * METRICS, i64> walk;  // logits, target, dlogits; loss or dloss; accuracy, top
  };
  enum : u32 {
    WIDE_TARGET = 1, REDUCED = 2, EQUAL_SHARES = 4, WIDE_LOSS = 8, GIVEN = 16, WIDE_DLOSS = 32,
    WIDE_WEIGHT = 64, WIDE_TOP = 128
  };

  // The largest logit, the sum of exponentials beside it, the sum of what logits exceed another
  // one by; where SOFT or WEIGHTED, that sum by probabilities or weights, and their own. Then the
  // largest logit without a cap, and where it is first.
  using State = Several<A, TERMS>;
  static DEVICE State start() {
    State s{};
    s.at[0] = Rows::nothing();
    if constexpr (METRICS) {
      s.at[SUMS] = Rows::nothing();
      carry(0x7fffffff, s.at[SUMS + 1]);
    }
    return s;
  }

  struct Row : Share {
    A cap, inverse;  // of the cap, 0 for none
    A from;          // what logits are compared with where targets are smoothed
    A keep, spread;  // what is left of a probability, and what each class gets
    bool smooth, plain;  // plain: logits are neither capped nor added up
  };

  // Takes the logit x at e where it is larger than the largest so far, or as large and before it.
  static DEVICE void seek(State& s, A x, i32 e) {
    const A most = s.at[SUMS];
    const bool alike = x == most || (x != x && most != most);
    if (!(x > most || (x != x && most == most) || (alike && e < carried(s.at[SUMS + 1])))) return;
    s.at[SUMS] = x;
    carry(e, s.at[SUMS + 1]);
  }
  // The same of vectors, of which most threads have nothing larger.
  static DEVICE void seek_all(const Row& row, i32 h, const Vec<T, V> (&v)[HELD], State& s) {
    const A most = largest(v);
    if (most < s.at[SUMS]) return;
    i32 at = 0x7fffffff;
    UNROLL for (int k = HELD - 1; k >= 0; --k) {
      const i32 e = Rows::element(row, h + k);
      A x[V];
      widen(v[k], x);
      UNROLL for (int i = V - 1; i >= 0; --i) at = x[i] == most || x[i] != x[i] ? e + i : at;
    }
    seek(s, most, at);
  }
  // The same beside another largest logit, which is what logits exceed where SOFT.
  static DEVICE void rebase(State& s, A most) {
    s.at[1] *= quick_exponential(s.at[0] - Rows::base(most));
    if constexpr (SOFT) s.at[2] = fused(s.at[3], Rows::base(s.at[0]) - Rows::base(most), s.at[2]);
    s.at[0] = most;
  }
  // Of all lanes: the largest first, so that each has one exponential.
  static DEVICE State across(State s, int lanes) {
    A most = s.at[0];
    for (int by = lanes / 2; by; by /= 2) most = larger(most, __shfl_xor_sync(~0u, most, by));
    rebase(s, most);
    for (int by = lanes / 2; by; by /= 2) {
      UNROLL for (int i = 1; i < SUMS; ++i) s.at[i] += __shfl_xor_sync(~0u, s.at[i], by);
      if constexpr (METRICS) {
        const A x = __shfl_xor_sync(~0u, s.at[SUMS], by);
        const i32 e = __shfl_xor_sync(~0u, carried(s.at[SUMS + 1]), by);
        seek(s, x, e);
      }
    }
    return s;
  }

  static DEVICE A weight_of(const Args& args, i64 c) {
    return widened(args.weight, c * args.step[2], args.flags & WIDE_WEIGHT);
  }

  static DEVICE A cap(const Row& row, A x) {
    return row.cap * quick_hyperbolic_tangent(x * row.inverse);
  }
  static DEVICE A capped(const Row& row, A x) { return row.cap > 0 ? cap(row, x) : x; }
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
      const A over = x[i] - Rows::base(s.at[0]);
      if constexpr (WAY == ALONE) add_term(p * over, s.at[2], lost[0]);
      else s.at[2] = fused(p, over, s.at[2]);
      add_term(p, s.at[3], lost[1]);
    }
  }
  static DEVICE void take(
      const Args& args, const Row& row, i32 h, const Loaded& v, State& s, A (&lost)[2]) {
    A x[V];
    if constexpr (METRICS) seek_all(row, h, v.row[0], s);
    const A most = larger(s.at[0], largest(v.row[0])), beside = Rows::base(most);
    if (row.plain && Near<A>::takes(beside)) {
      const Near<A> near(beside);
      rebase(s, most);
      A sum = 0;
      UNROLL for (int k = 0; k < HELD; ++k) {
        widen(v.row[0][k], x);
        UNROLL for (int i = 0; i < V; ++i) sum += near(x[i]);
        if constexpr (SOFT) weigh(row, Rows::element(row, h + k), x, v.row[1][k], s, lost);
      }
      s.at[1] = fused(sum, near.rest, s.at[1]);
      return;
    }
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = Rows::element(row, h + k);
      if (e >= row.end) continue;
      A most = s.at[0];
      widen(v.row[0][k], x);
      if (row.cap > 0) {
        UNROLL for (int i = 0; i < V; ++i) {
          x[i] = Rows::there(row, e, i) ? cap(row, x[i]) : Rows::nothing();
        }
      }
      UNROLL for (int i = 0; i < V; ++i) {
        most = larger(most, x[i]);
        if constexpr (WEIGHTED) {
          if (!row.smooth || !Rows::there(row, e, i)) continue;
          const A w = weight_of(args, e + i);
          add_term(w * (x[i] - row.from), s.at[2], lost[0]);
          add_term(w, s.at[3], lost[1]);
        } else if (!SOFT && Rows::there(row, e, i)) {
          add_term(x[i] - row.from, s.at[2], lost[0]);
        }
      }
      rebase(s, most);
      UNROLL for (int i = 0; i < V; ++i) s.at[1] += quick_exponential(x[i] - Rows::base(most));
      if constexpr (SOFT) weigh(row, e, x, v.row[1][k], s, lost);
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
        if (!PLAIN && row.smooth && Rows::there(row, e, i)) {
          less *= weight_of(args, e + i) / slope.whole;
        }
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
      const i32 e = Rows::element(row, h + k);
      A y[V];
      if (e >= row.end) continue;
      slopes<PLAIN>(args, row, e, v.row[0][k], v.row[SOFT][k], slope, y);
      put<Rows::ACCESS, ADD>(d, args.step[1], e, args.n, y);
    }
  }
  static DEVICE void run(const Args& args) {
    if constexpr (CLUSTER > 1) cluster_arrive();
    Row row;
    static_cast<Share&>(row) = Rows::share(args.log_lanes);
    const bool exists = row.number < args.rows;
    i64 at[4 + 2 * METRICS];
    args.walk.template offsets<1>(exists ? row.number : 0, at);
    const bool reduced = args.flags & REDUCED;

    i64 target = args.ignored;
    bool counts = exists;
    if constexpr (!SOFT) {
      if (exists) target = entry_of(args.target, at[1], args.flags & WIDE_TARGET);
      Report* const listener = row.rank == 0 ? args.listener : nullptr;
      counts = target != args.ignored &&
               valid(target, args.classes, listener, args.ticket, row.number);
    }
    // Rows that do not count are not read.
    const A smooth = A(args.label_smoothing), z = A(args.z_loss);
    row.row[0] = args.logits + at[0];
    row.step[0] = args.step[0];
    if constexpr (SOFT) {
      row.row[1] = static_cast<const T*>(args.target) + at[1];
      row.step[1] = args.step[2];
    }
    Rows::begin(row, counts ? args.n : 0, args.rounds, args.kept);
    row.cap = A(args.softcap);
    row.inverse = row.cap > 0 ? A(1) / row.cap : A(0);
    row.smooth = smooth > 0;
    row.plain = !(row.cap > 0) && (SOFT || !row.smooth);
    row.from = 0;
    row.keep = 1 - smooth;
    row.spread = row.smooth ? smooth / A(args.n) : A(0);

    const Loaded held = Rows::fetch_last(row);
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
      if (LOSS && row.rank == 0) goal = capped(row, widen(row.row[0][target * args.step[0]]));
      const A first = row.smooth ? capped(row, widen(row.row[0][0])) : A(0);
      if (first - first == 0) row.from = first;
    }
    const auto taking = [&](i32 h, const Loaded& v) { take(args, row, h, v, s, lost); };
    if constexpr (GRADIENT) Rows::look(row, held, taking);
    else Rows::look_once(row, held, taking);
    int turn = 0;
    s = Rows::across_row(row, s, start(), turn, across);

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
      } else if constexpr (Rows::BY_BLOCK) {
        if (row.rank == 0) args.sums[blockIdx.x / CLUSTER] = loss;
      } else {
        const A total = block_total(row.rank == 0 ? loss : A(0));
        if (threadIdx.x == 0) args.sums[blockIdx.x] = total;
      }
    }
    if constexpr (METRICS) {
      const i32 top = counts ? carried(s.at[SUMS + 1]) : -1;
      const A hit = counts && top == target ? own : A(0);
      if (exists && row.rank == 0) {
        if (args.flags & WIDE_TOP) static_cast<i64*>(args.top)[at[5]] = top;
        else static_cast<i32*>(args.top)[at[5]] = top;
      }
      if (!reduced) {
        if (exists && row.rank == 0) deliver_one(hit, args.accuracy, at[4], args.flags & WIDE_LOSS);
      } else if constexpr (Rows::BY_BLOCK) {
        if (row.rank == 0) args.hits[blockIdx.x / CLUSTER] = hit;
      } else {
        // The total of losses has been read.
        __syncthreads();
        const A total = block_total(row.rank == 0 ? hit : A(0));
        if (threadIdx.x == 0) args.hits[blockIdx.x] = total;
      }
    }
    if constexpr (GRADIENT) {
      if (!exists) return;
      T* const d = args.dlogits + at[2];
      if (!counts) return Rows::template put_zeros<ADD>(row, d, args.step[1], args.n);
      A pull = A(1);
      if constexpr (SOFT) pull = s.at[3];
      // A weight by the sum: a quotient by a sum that is tiny overflows.
      if (WEIGHTED) own = own / whole;
      if (WEIGHTED) pull = fused(s.at[SUMS - 1] / whole, row.spread, own * row.keep);
      if (z > 0) pull += WEIGHTED ? 2 * z * norm * own : 2 * z * norm;
      const Near<A> near(most);
      const bool plain = (WEIGHTED ? row.plain : !(row.cap > 0)) && Near<A>::takes(most);
      const A weight = share / s.at[1] * pull;
      const Slope slope{
          near, most, plain ? weight * near.rest : weight, share * row.spread,
          SOFT ? share : WEIGHTED ? share * (row.keep * own) : share * row.keep, whole, i32(target),
          plain};
      Rows::look_again(row, held, [&](i32 h, const Loaded& v) {
        if (slope.plain) put_slopes<true>(args, d, row, h, v, slope);
        else put_slopes<false>(args, d, row, h, v, slope);
      });
    }
  }
};

// The mean loss of rows so few that one block also counts those that count.
template <class T> struct CountedMean {
  using A = Acc<T>;
  static constexpr int RESIDENT = 1;

  struct Args {
    const void* target;
    const A* sums;
    T* out;
    i64 rows, run, classes, ignored;
    u32 wide, wide_loss;
    i32 count, pad;
    Walk<0, 1, i64> walk;
  };

  static DEVICE void run(const Args& args) {
    i32 counts = 0;
    total_of_targets(args, &counts, [](i64) { return 1; });
    A sum = 0;
    for (i32 i = i32(threadIdx.x); i < args.count; i += i32(blockDim.x)) sum += args.sums[i];
    // The total of counts has been read.
    __syncthreads();
    sum = block_total(sum);
    if (threadIdx.x == 0) deliver_one(A(f64(sum) / f64(counts)), args.out, 0, args.wide_loss);
  }
};

template <
    class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool WEIGHTED = false,
    bool METRICS = false>
using CrossEntropy =
    Entropy<true, false, false, T, WAY, HELD, WIDE, ADD, CLUSTER, WEIGHTED, METRICS>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool WEIGHTED = false>
using CrossEntropyBackward =
    Entropy<false, true, false, T, WAY, HELD, WIDE, ADD, CLUSTER, WEIGHTED>;
template <
    class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool WEIGHTED = false,
    bool METRICS = false>
using CrossEntropyWithGradient =
    Entropy<true, true, false, T, WAY, HELD, WIDE, ADD, CLUSTER, WEIGHTED, METRICS>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using SoftCrossEntropy = Entropy<true, false, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using SoftCrossEntropyBackward = Entropy<false, true, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using SoftCrossEntropyWithGradient = Entropy<true, true, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;

}  // namespace baracuda
