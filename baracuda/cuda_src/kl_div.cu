// Divergences of a student's rows of logits from a teacher's, their gradient, or both.
//
// A row and its teacher's stay on chip as far as they fit: first the sums of exponentials are
// found, then what the probabilities cost, then slopes. What does not fit is read again.
#include "common/divergence_rows.cuh"

namespace baracuda {

enum Kind { FORWARD, REVERSE, JSD };

template <
    bool LOSS, bool GRADIENT, class T, int KIND, int WAY, int HELD, bool WIDE, bool ADD,
    int CLUSTER>
struct Divergence : DivergenceRows<T, WAY, HELD, WIDE, CLUSTER, 2> {
  using Rows = DivergenceRows<T, WAY, HELD, WIDE, CLUSTER, 2>;
  using A = typename Rows::A;
  using Share = typename Rows::Share;
  using Loaded = typename Rows::Loaded;
  static constexpr int V = Rows::V;
  // What slopes are made of: all sums but those of exponentials, which the forward kind needs none.
  static constexpr bool COSTS = LOSS || KIND != FORWARD;
  static constexpr bool TWO = KIND != FORWARD && LOSS && GRADIENT;

  struct Args {
    const T* logits;
    const T* teacher;
    const T* dloss;
    const T* weight;   // of each row
    T* dlogits;
    T* loss;           // of each row, unless they are added up:
    A* sums;           // by blocks
    const A* shares;   // the weights of all rows, in parts; for means
    f64 beta, temperature;
    i64 rows;
    i64 step[3];       // of logits, teacher, dlogits
    i32 n, log_lanes, rounds, kept, parts;  // rounds: of HELD vectors, and so many of these on chip
    u32 flags;
    Walk<0, 5, i64> walk;  // logits, teacher, dlogits; loss or dloss; weight
  };
  // What is known of the student and of the teacher. Later: what the row costs, and the divergence
  // in its slopes.
  using State = typename Rows::State;

  // The probabilities of a class, and the logarithm of the student's by the teacher's. What the
  // sums of exponentials are off by moves all of these alike, which the formulas below forgive.
  struct Class {
    A student, teacher, log;
  };
  struct Known {
    Cooled<A> power;
    A from[2], inverse[2];
    A shift;                 // the logarithm of one sum by the other
    A of_teacher, of_student;  // their shares of a mixture

    DEVICE Known(const Cooled<A>& power, const State& s, f64 beta)
        : power(power),
          from{Rows::base(s.at[0]), Rows::base(s.at[2])},
          inverse{1 / s.at[1], 1 / s.at[3]},
          shift(logarithm(s.at[1] / s.at[3])),
          of_teacher(A(beta)),
          of_student(A(1 - beta)) {}
    DEVICE Class operator()(A x, A y) const {
      const A over = x - from[0], taught = y - from[1];
      return {
          power(over) * inverse[0], power(taught) * inverse[1],
          fused(over - taught, power.cool, -shift)};
    }
  };

  static DEVICE A times(A p, A log) { return p == 0 ? A(0) : p * log; }
  // What a class has of KL(p || q), with log = log(q/p): no less than 0, so that nothing cancels
  // over classes; q - p sums up to 0.
  static DEVICE A relative(A p, A q, A log) {
    const A far = fused(-p, log, q - p);
    return p == 0 ? q : magnitude(log) < A(2) ? p * exponential_excess(log) : far;
  }
  // Logarithms of the student's and of the teacher's probabilities by those of the mixture. Beside
  // the larger one the mixture is `rest + keep * exp(-|log|)`, which neither overflows nor cancels.
  static DEVICE Pair<A> over_mixture(const Known& known, A log) {
    const bool above = log > 0;
    const A away = above ? -log : log;
    const A keep = above ? known.of_teacher : known.of_student;
    const A rest = above ? known.of_student : known.of_teacher;
    const A less = keep * exponential_less_one(away);
    const A mixture = fused(keep, quick_exponential(away), rest);
    const A far = logarithm2(mixture) * A(0.69314718055994531);
    const A likely = less > A(-0.5) ? -logarithm_1p(less) : -far, unlikely = away + likely;
    return above ? Pair<A>{likely, unlikely} : Pair<A>{unlikely, likely};
  }

  static DEVICE void add_costs(
      const Share& row, const Known& known, i32 h, const Loaded& v, State& s) {
    UNROLL for (int k = 0; k < HELD; ++k) {
      if (Rows::element(row, h + k) >= row.end) continue;
      A x[V], y[V], cost = 0, own = 0;
      widen(v.row[0][k], x);
      widen(v.row[1][k], y);
      UNROLL for (int i = 0; i < V; ++i) {
        const Class c = known(x[i], y[i]);
        if constexpr (KIND == FORWARD) cost += relative(c.teacher, c.student, c.log);
        if constexpr (KIND == REVERSE && LOSS) cost += relative(c.student, c.teacher, -c.log);
        // What a sum of exponentials is off by has to be in this too, to leave slopes.
        if constexpr (KIND == REVERSE && GRADIENT) own += times(c.student, c.log);
        if constexpr (KIND == JSD) {
          const Pair<A> logs = over_mixture(known, c.log);
          const A mine = times(c.student, logs.first);
          own += mine;
          if constexpr (LOSS) {
            cost += fused(
                known.of_student, mine, known.of_teacher * times(c.teacher, logs.second));
          }
        }
      }
      if constexpr (KIND != FORWARD && !LOSS) cost = own;
      s.at[0] += cost;
      if constexpr (TWO) s.at[1] += own;
    }
  }
  static DEVICE State across_costs(State s, int lanes) {
    for (int by = lanes / 2; by; by /= 2) {
      s.at[0] += __shfl_xor_sync(~0u, s.at[0], by);
      if constexpr (TWO) s.at[1] += __shfl_xor_sync(~0u, s.at[1], by);
    }
    return s;
  }

  static DEVICE void put_slopes(
      const Args& args, T* d, const Share& row, const Known& known, A divergence, A scale, i32 h,
      const Loaded& v) {
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = Rows::element(row, h + k);
      if (e >= row.end) continue;
      A x[V], y[V];
      widen(v.row[0][k], x);
      widen(v.row[1][k], y);
      UNROLL for (int i = 0; i < V; ++i) {
        const Class c = known(x[i], y[i]);
        if constexpr (KIND == FORWARD) {
          y[i] = (c.student - c.teacher) * scale;
        } else {
          A log = c.log;
          if constexpr (KIND == JSD) log = over_mixture(known, log).first;
          // Nothing of an infinite logarithm is nothing.
          y[i] = c.student * ((c.student == 0 ? A(0) : log) - divergence) * scale;
        }
      }
      put<Rows::ACCESS, ADD>(d, args.step[2], e, args.n, y);
    }
  }

  static DEVICE void run(const Args& args) {
    if constexpr (CLUSTER > 1) cluster_arrive();
    Share row = Rows::share(args.log_lanes);
    const bool exists = row.number < args.rows;
    i64 at[5];
    args.walk.template offsets<1>(exists ? row.number : 0, at);
    const A weight = Rows::weight_of(args, exists, at[4]);
    // Rows of weight 0 are not read.
    const bool counts = exists && weight != 0;
    row.row[0] = args.logits + at[0];
    row.row[1] = args.teacher + at[1];
    row.step[0] = args.step[0];
    row.step[1] = args.step[1];
    Rows::begin(row, counts ? args.n : 0, args.rounds, args.kept);

    const Loaded held = Rows::fetch_last(row);
    [[maybe_unused]] A pull = 0;
    if constexpr (GRADIENT) pull = Rows::pull_of(args, exists, weight, at[3]);
    const Cooled<A> power(args.temperature);
    State s = Rows::start();
    Rows::look(row, held, [&](i32 h, const Loaded& v) { Rows::take(row, power, h, v, s); });
    int turn = 0;
    s = Rows::across_row(row, s, Rows::start(), turn, [&](State s, int lanes) {
      return Rows::across(power, s, lanes);
    });
    const Known known(power, s, args.beta);
    if constexpr (COSTS) {
      // Who has been told so far may be told the next.
      if constexpr (CLUSTER > 1) cluster_arrive();
      s = State{};
      Rows::look_again(
          row, held, [&](i32 h, const Loaded& v) { add_costs(row, known, h, v, s); });
      s = Rows::across_row(row, s, State{}, turn, [&](State s, int lanes) {
        return across_costs(s, lanes);
      });
    }
    if constexpr (LOSS) {
      Rows::deliver(args, row, exists, counts ? s.at[0] * weight : A(0), at[3]);
    }
    if constexpr (GRADIENT) {
      if (!exists) return;
      T* const d = args.dlogits + at[2];
      if (!counts) return Rows::template put_zeros<ADD>(row, d, args.step[2], args.n);
      const A scale = pull * power.cool * (KIND == JSD ? known.of_student : A(1));
      const A divergence = s.at[TWO];
      Rows::look_again(row, held, [&](i32 h, const Loaded& v) {
        put_slopes(args, d, row, known, divergence, scale, h, v);
      });
    }
  }
};

template <class T, int KIND, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using KlDivWithLogits = Divergence<true, false, T, KIND, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int KIND, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using KlDivWithLogitsBackward = Divergence<false, true, T, KIND, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int KIND, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using KlDivWithLogitsWithGradient = Divergence<true, true, T, KIND, WAY, HELD, WIDE, ADD, CLUSTER>;

}  // namespace baracuda
