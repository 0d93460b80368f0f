// Divergences of rows of logits from the likeliest classes of a teacher, their gradient, or both.
//
// A row stays on chip as far as it fits, as in kl_div.cu. The threads that share it take a class of
// the teacher each, whose logit is read once more. Slopes are first written as if the teacher had
// no classes, and then those of its classes are written over.
#include "common/divergence_rows.cuh"
#include "common/report.cuh"

namespace baracuda {

template <bool LOSS, bool GRADIENT, class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
struct TopkDivergence : DivergenceRows<T, WAY, HELD, WIDE, CLUSTER, 1> {
  using Rows = DivergenceRows<T, WAY, HELD, WIDE, CLUSTER, 1>;
  using A = typename Rows::A;
  using Share = typename Rows::Share;
  using Loaded = typename Rows::Loaded;
  static constexpr int V = Rows::V;

  struct Args {
    const T* logits;
    const void* ids;
    const T* probs;
    const T* dloss;
    const T* weight;   // of each row
    T* dlogits;
    T* loss;           // of each row, unless they are added up:
    A* sums;           // by blocks
    const A* shares;   // the weights of all rows, in parts; for means
    A* seen;           // of each class of the teacher the logit, and behind these the old slope
    f64 temperature;
    Report* listener;
    i64 rows;
    i64 step[4];       // of logits, dlogits, ids, probs
    i32 n, k, log_lanes, rounds, kept, parts;  // rounds: of HELD vectors, and so many on chip
    u32 ticket, flags;
    Walk<0, 6, i64> walk;  // logits, ids, dlogits; loss or dloss; weight; probs
  };
  enum : u32 { WIDE_IDS = 128, WIDE_PROBS = 256 };
  using Place = i64[6];

  static DEVICE i64 id_of(const Args& args, const Place& at, i32 j) {
    return entry_of(args.ids, at[1] + j * args.step[2], args.flags & WIDE_IDS);
  }
  static DEVICE A prob_of(const Args& args, const Place& at, i32 j) {
    return widened(args.probs, at[5] + j * args.step[3], args.flags & WIDE_PROBS);
  }

  // First what is known of the student; later what its row costs, and the sum of the teacher's
  // probabilities.
  using State = typename Rows::State;
  struct Known {
    Cooled<A> power;
    A from, inverse, log_sum;

    DEVICE Known(const Cooled<A>& power, const State& s)
        : power(power), from(Rows::base(s.at[0])), inverse(1 / s.at[1]),
          log_sum(logarithm(s.at[1])) {}
    DEVICE A probability(A x) const { return power(x - from) * inverse; }
    DEVICE A log(A x) const { return fused(x - from, power.cool, -log_sum); }
  };

  // What this thread has of the teacher's classes.
  static DEVICE State costs(
      const Args& args, const Place& at, const Share& row, const Known& known, bool counts) {
    State s{};
    for (i32 j = row.rank; row.number < args.rows && j < args.k; j += row.lanes) {
      const i64 id = id_of(args, at, j), place = row.number * args.k + j;
      if (!valid(id, args.n, args.listener, args.ticket, place) || !counts) continue;
      const A x = widen(row.row[0][id * args.step[0]]), p = prob_of(args, at, j);
      if (LOSS && p != 0) s.at[0] = fused(p, logarithm(p) - known.log(x), s.at[0]);
      s.at[1] += p;
      if constexpr (GRADIENT) args.seen[place] = x;
      if constexpr (ADD) {
        args.seen[place + args.rows * args.k] = widen(args.dlogits[at[2] + id * args.step[1]]);
      }
    }
    return s;
  }
  static DEVICE State across_costs(State s, int lanes) {
    for (int by = lanes / 2; by; by /= 2) {
      UNROLL for (int i = 0; i < 2; ++i) s.at[i] += __shfl_xor_sync(~0u, s.at[i], by);
    }
    return s;
  }

  static DEVICE void put_slopes(
      const Args& args, T* d, const Share& row, const Known& known, A push, i32 h,
      const Loaded& v) {
    UNROLL for (int k = 0; k < HELD; ++k) {
      const i32 e = Rows::element(row, h + k);
      if (e >= row.end) continue;
      A x[V];
      widen(v.row[0][k], x);
      UNROLL for (int i = 0; i < V; ++i) x[i] = known.probability(x[i]) * push;
      put<Rows::ACCESS, ADD>(d, args.step[1], e, args.n, x);
    }
  }
  // Those of the teacher's classes. Threads that have the same class write the same.
  static DEVICE void put_over(
      const Args& args, const Place& at, T* d, const Share& row, const Known& known, A mass,
      A scale) {
    for (i32 j = row.rank; j < args.k; j += row.lanes) {
      const i64 id = id_of(args, at, j), place = row.number * args.k + j;
      if (u64(id) >= u64(args.n)) continue;
      A taught = 0;
      for (i32 i = 0; i < args.k; ++i) {
        if (id_of(args, at, i) == id) taught += prob_of(args, at, i);
      }
      A slope = fused(known.probability(args.seen[place]), mass, -taught) * scale;
      if constexpr (ADD) slope += args.seen[place + args.rows * args.k];
      narrow(slope, d[id * args.step[1]]);
    }
  }
  // All that share a row have written what they write first.
  static DEVICE void meet() {
    if constexpr (CLUSTER > 1) cluster_sync();
    else if constexpr (Rows::BY_BLOCK) __syncthreads();
    else if constexpr (WAY != ALONE) __syncwarp();
  }

  static DEVICE void run(const Args& args) {
    if constexpr (CLUSTER > 1) cluster_arrive();
    Share row = Rows::share(args.log_lanes);
    const bool exists = row.number < args.rows;
    Place at;
    args.walk.template offsets<1>(exists ? row.number : 0, at);
    const A weight = Rows::weight_of(args, exists, at[4]);
    // Rows of weight 0 are not read.
    const bool counts = exists && weight != 0;
    row.row[0] = args.logits + at[0];
    row.step[0] = args.step[0];
    Rows::begin(row, counts ? args.n : 0, args.rounds, args.kept);

    const Loaded held = Rows::fetch_last(row);
    [[maybe_unused]] A pull = 0;
    if constexpr (GRADIENT) pull = Rows::pull_of(args, exists, weight, at[3]);
    const Cooled<A> power(args.temperature);
    State s = Rows::start();
    const auto taking = [&](i32 h, const Loaded& v) { Rows::take(row, power, h, v, s); };
    if constexpr (GRADIENT) Rows::look(row, held, taking);
    else Rows::look_once(row, held, taking);
    int turn = 0;
    s = Rows::across_row(row, s, Rows::start(), turn, [&](State s, int lanes) {
      return Rows::across(power, s, lanes);
    });
    const Known known(power, s);
    // Who has been told so far may be told the next.
    if constexpr (CLUSTER > 1) cluster_arrive();
    s = costs(args, at, row, known, counts);
    s = Rows::across_row(row, s, State{}, turn, across_costs);
    if constexpr (LOSS) {
      Rows::deliver(args, row, exists, counts ? s.at[0] * weight : A(0), at[3]);
    }
    if constexpr (GRADIENT) {
      T* const d = args.dlogits + at[2];
      const A scale = pull * power.cool, mass = s.at[1], push = mass * scale;
      if (counts) {
        Rows::look_again(row, held, [&](i32 h, const Loaded& v) {
          put_slopes(args, d, row, known, push, h, v);
        });
      } else if (exists) {
        Rows::template put_zeros<ADD>(row, d, args.step[1], args.n);
      }
      meet();
      if (counts) put_over(args, at, d, row, known, mass, scale);
    }
  }
};

template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using TopkKlDivWithLogits = TopkDivergence<true, false, T, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using TopkKlDivWithLogitsBackward = TopkDivergence<false, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD, int CLUSTER>
using TopkKlDivWithLogitsWithGradient =
    TopkDivergence<true, true, T, WAY, HELD, WIDE, ADD, CLUSTER>;

}  // namespace baracuda
