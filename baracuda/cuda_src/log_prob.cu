// Log-probabilities of the targets of rows of logits, entropies of the rows, or their gradient.
//
// SPREAD: entropies are asked for, or pulled at.
#include "common/exponentials.cuh"
#include "common/logit_rows.cuh"
#include "common/report.cuh"

namespace baracuda {

template <
    bool GRADIENT, class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool SPREAD>
struct LogProbs : LogitRows<T, WAY, HELD, WIDE, CLUSTER> {
  using Rows = LogitRows<T, WAY, HELD, WIDE, CLUSTER>;
  using A = typename Rows::A;
  using Share = typename Rows::Share;
  using Loaded = typename Rows::Loaded;
  static constexpr int V = Rows::V, TERMS = 2 + SPREAD;

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
  static DEVICE State start() {
    State s{};
    s.at[0] = Rows::nothing();
    return s;
  }

  // What is made of each logit.
  struct Scale {
    Cooled<A> power;
    A cap, inverse;  // of the cap, 0 for none

    DEVICE A capped(A x) const { return cap > 0 ? cap * quick_hyperbolic_tangent(x * inverse) : x; }
  };

  // Nothing of what is infinitely far below the largest is nothing.
  static DEVICE A finite(A over, A power) { return power > 0 ? over : A(0); }
  // The same beside another largest logit.
  static DEVICE void rebase(const Scale& scale, State& s, A most) {
    const A over = s.at[0] - Rows::base(most), power = scale.power(over);
    if constexpr (SPREAD) s.at[2] = power * fused(s.at[1], finite(over, power), s.at[2]);
    s.at[1] *= power;
    s.at[0] = most;
  }
  // Of all lanes: the largest first, so that each has one exponential.
  static DEVICE State across(const Scale& scale, State s, int lanes) {
    A most = s.at[0];
    for (int by = lanes / 2; by; by /= 2) most = larger(most, __shfl_xor_sync(~0u, most, by));
    rebase(scale, s, most);
    for (int by = lanes / 2; by; by /= 2) {
      UNROLL for (int i = 1; i < TERMS; ++i) s.at[i] += __shfl_xor_sync(~0u, s.at[i], by);
    }
    return s;
  }

  static DEVICE void take(
      const Share& row, const Scale& scale, i32 h, const Loaded& v, State& s) {
    const bool caps = scale.cap > 0;
    if (!caps) rebase(scale, s, larger(s.at[0], largest(v.row[0])));
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = Rows::element(row, h + k);
      if (e >= row.end) continue;
      A x[V];
      widen(v.row[0][k], x);
      if (caps) {
        A most = s.at[0];
        UNROLL for (int i = 0; i < V; ++i) {
          x[i] = Rows::there(row, e, i) ? scale.capped(x[i]) : Rows::nothing();
          most = larger(most, x[i]);
        }
        rebase(scale, s, most);
      }
      // One thread that adds each to the sum of a whole row would drift.
      A sum = 0, spread = 0;
      const A from = Rows::base(s.at[0]);
      UNROLL for (int i = 0; i < V; ++i) {
        const A over = x[i] - from, power = scale.power(over);
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
      const Args& args, T* d, const Share& row, const Scale& scale, i32 h, const Loaded& v,
      const Slope& slope) {
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = Rows::element(row, h + k);
      if (e >= row.end) continue;
      A x[V], y[V];
      widen(v.row[0][k], x);
      UNROLL for (int i = 0; i < V; ++i) {
        x[i] = scale.capped(x[i]);
        const A over = x[i] - slope.most, power = scale.power(over);
        A pull = slope.level;
        if constexpr (SPREAD) pull = fused(slope.rise, finite(over, power), pull);
        y[i] = -(power * slope.weight) * pull;
        y[i] += e + i == slope.target ? slope.hit : A(0);
        const A curve = x[i] * scale.inverse;
        if (scale.cap > 0) y[i] *= 1 - curve * curve;
      }
      put<Rows::ACCESS, ADD>(d, args.step[1], e, args.n, y);
    }
  }

  static DEVICE void run(const Args& args) {
    if constexpr (CLUSTER > 1) cluster_arrive();
    Share row = Rows::share(args.log_lanes);
    const bool exists = row.number < args.rows, wide = args.flags & WIDE_RESULT;
    i64 at[5];
    args.walk.template offsets<1>(exists ? row.number : 0, at);

    i64 target = args.ignored;
    if (exists) target = entry_of(args.target, at[1], args.flags & WIDE_TARGET);
    Report* const listener = row.rank == 0 ? args.listener : nullptr;
    bool counts = target != args.ignored &&
                  valid(target, args.classes, listener, args.ticket, row.number);
    [[maybe_unused]] A first = 0, second = 0;
    if constexpr (GRADIENT) {
      if (counts) first = widened(args.log_prob, at[3], wide);
      if (SPREAD && counts) second = widened(args.entropy, at[4], wide);
      counts = counts && (first != 0 || second != 0);
    }
    // Rows that do not count are not read.
    row.row[0] = args.logits + at[0];
    row.step[0] = args.step[0];
    Rows::begin(row, counts ? args.n : 0, args.rounds, args.kept);
    const A cap = A(args.softcap);
    const Scale scale{Cooled<A>(args.temperature), cap, cap > 0 ? A(1) / cap : A(0)};

    const Loaded held = Rows::fetch_last(row);
    State s = start();
    A goal = 0;  // the logit of the target, which the first thread of a row has
    if (!GRADIENT && counts && row.rank == 0) {
      goal = scale.capped(widen(row.row[0][target * args.step[0]]));
    }
    const auto taking = [&](i32 h, const Loaded& v) { take(row, scale, h, v, s); };
    if constexpr (GRADIENT) Rows::look(row, held, taking);
    else Rows::look_once(row, held, taking);
    int turn = 0;
    s = Rows::across_row(row, s, start(), turn, [&](State s, int lanes) {
      return across(scale, s, lanes);
    });
    if (!exists) return;
    const A most = s.at[0], cool = scale.power.cool;
    [[maybe_unused]] const A mean = SPREAD ? s.at[TERMS - 1] / s.at[1] : A(0);
    if constexpr (!GRADIENT) {
      if (row.rank != 0) return;
      const A log_sum = logarithm(s.at[1]);
      deliver_one(counts ? fused(goal - most, cool, -log_sum) : A(0), args.log_prob, at[3], wide);
      if constexpr (SPREAD) {
        deliver_one(counts ? fused(-mean, cool, log_sum) : A(0), args.entropy, at[4], wide);
      }
    } else {
      T* const d = args.dlogits + at[2];
      if (!counts) return Rows::template put_zeros<ADD>(row, d, args.step[1], args.n);
      const A rise = second * cool;
      const Slope slope{
          most, cool / s.at[1], fused(-rise, mean, first), rise, first * cool, i32(target)};
      Rows::look_again(row, held, [&](i32 h, const Loaded& v) {
        put_slopes(args, d, row, scale, h, v, slope);
      });
    }
  }
};

template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool SPREAD>
using LogProb = LogProbs<false, T, WAY, HELD, WIDE, ADD, CLUSTER, SPREAD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER, bool SPREAD>
using LogProbBackward = LogProbs<true, T, WAY, HELD, WIDE, ADD, CLUSTER, SPREAD>;

}  // namespace baracuda
