// Cross entropy of rows of logits, its gradient, or both, with the row on chip in between.
//
// As in the rows schedule a thread holds HELD vectors of 16 bytes, and a row is that of some lanes
// of a warp, of a block, or of one that reads again what it cannot hold; of the rest, a block keeps
// in shared memory what fits. Where rows lie side by side, ALONE, each has one thread. A SOFT target
// is a row too: the probability of each class.
#include "common/report.cuh"
#include "common/rows.cuh"
#include "common/total.cuh"

namespace baracuda {

constexpr int ALONE = 3;

// tanh x to a few units in the last place of x or, where that is more, of 1.
HD f64 quick_hyperbolic_tangent(f64 x) { return tanh(x); }
HD f32 quick_hyperbolic_tangent(f32 x) {
  const f32 size = magnitude(x), square = x * x, e = quick_exponential(-2 * size);
  f32 series = fused(square, 0.0218694885f, -0.0539682540f);
  series = fused(fused(series, square, 0.1333333333f), square, -0.3333333333f);
  const f32 far = (1 - e) * reciprocal(1 + e);
  return size < 0.25f ? fused(x * square, series, x) : x < 0 ? -far : far;
}

template <bool LOSS, bool GRADIENT, bool SOFT, class T, int WAY, int HELD, bool WIDE, bool ADD>
struct Entropy {
  using A = Acc<T>;
  static constexpr Access ACCESS = WIDE ? VECTORS : STEPS;
  static constexpr int V = 16 / sizeof(T);
  static constexpr bool BY_BLOCK = WAY == BLOCK || WAY == LONG, LOOPS = WAY == LONG || WAY == ALONE;
  static constexpr bool FEW = sizeof(T) == 8 || WAY == ALONE || !WIDE;
  static constexpr int RESIDENT = BY_BLOCK ? 1 : FEW ? 2 : 3;

  struct Args {
    const T* logits;
    const void* target;  // an index for each row or, where SOFT, T for each logit
    const T* dloss;
    T* dlogits;
    T* loss;           // of each row, unless they are added up:
    A* sums;           // by blocks
    const i32* counts; // how many rows count, in parts; for means
    f64 label_smoothing, z_loss, softcap;
    Report* listener;
    i64 classes, ignored, rows;
    i64 step[3];       // of logits, dlogits and, where SOFT, target
    i32 n, log_lanes, kept, parts;
    u32 ticket, flags;
    Walk<0, 4, i64> walk;  // logits, target, dlogits; loss or dloss
  };
  enum : u32 { WIDE_TARGET = 1, REDUCED = 2, EQUAL_SHARES = 4 };

  // The largest logit, the sum of exponentials beside it, the sum of what logits exceed another
  // one by, and the logit of the target; where SOFT, that sum by probabilities, and their own.
  using State = Several<A, 4>;
  static DEVICE A nothing() { return -A(infinity()); }
  static DEVICE A base(A most) { return most == nothing() ? A(0) : most; }
  // What logits exceed another one by: where SOFT, the largest.
  static DEVICE A rebased(const State& s, A most) {
    return SOFT ? fused(s.at[3], base(s.at[0]) - base(most), s.at[2]) : s.at[2];
  }
  static DEVICE State join(const State& a, const State& b) {
    const bool first = a.at[0] >= b.at[0];
    const A low = first ? b.at[0] : a.at[0], most = larger(a.at[0], b.at[0]);
    const A less = first ? b.at[1] : a.at[1], more = first ? a.at[1] : b.at[1];
    const A sum = fused(less, quick_exponential(low - base(most)), more);
    return {most, sum, rebased(a, most) + rebased(b, most), a.at[3] + b.at[3]};
  }

  struct Row {
    const T* x;
    const T* t;
    i32 end, rank, lanes;
    A cap, inverse;  // of the cap, 0 for none
    A from;          // what logits are compared with where targets are smoothed
    A keep, spread;  // what is left of a probability, and what each class gets
    bool smooth;
  };

  static DEVICE A capped(const Row& row, A x) {
    return row.cap > 0 ? row.cap * quick_hyperbolic_tangent(x * row.inverse) : x;
  }
  static DEVICE bool there(const Row& row, i32 e) { return WIDE || e < row.end; }
  static DEVICE i32 element(const Row& row, i32 h) { return (row.rank + h * row.lanes) * V; }

  static DEVICE Vec<T, V> fetch_soft(const Args& args, const Row& row, i32 e) {
    if constexpr (SOFT) return fetch<V, ACCESS>(row.t, args.step[2], e, row.end);
    return {};
  }
  static DEVICE A probability(const Row& row, const Vec<T, V>& t, int i) {
    return fused(widen(t, i), row.keep, row.spread);
  }

  static DEVICE void take(
      const Row& row, i32 e, const Vec<T, V>& v, const Vec<T, V>& t, State& s) {
    A x[V];
    widen(v, x);
    A most = s.at[0];
    UNROLL for (int i = 0; i < V; ++i) {
      x[i] = there(row, e + i) ? capped(row, x[i]) : nothing();
      most = larger(most, x[i]);
    }
    const A beside = base(most);
    A sum = s.at[1] * quick_exponential(s.at[0] - beside);
    s.at[2] = rebased(s, most);
    UNROLL for (int i = 0; i < V; ++i) sum += quick_exponential(x[i] - beside);
    s.at[0] = most;
    s.at[1] = sum;
    if constexpr (SOFT) {
      UNROLL for (int i = 0; i < V; ++i) {
        if (!there(row, e + i)) continue;
        const A p = probability(row, t, i);
        s.at[2] = fused(p, x[i] - beside, s.at[2]);
        s.at[3] += p;
      }
    } else if (row.smooth) {
      UNROLL for (int i = 0; i < V; ++i) s.at[2] += there(row, e + i) ? x[i] - row.from : A(0);
    }
  }

  // What becomes of an element: weight * exp(x - most) - spread, `hit` less at the target; where
  // SOFT, `hit` times its probability less.
  struct Slope {
    A most, weight, spread, hit;
    i32 target;
  };

  static DEVICE void put_slopes(
      const Args& args, T* d, const Row& row, i32 e, const Vec<T, V>& v, const Vec<T, V>& t,
      const Slope& slope) {
    A x[V];
    widen(v, x);
    UNROLL for (int i = 0; i < V; ++i) {
      const A capped_x = capped(row, x[i]), curve = capped_x * row.inverse;
      A y = quick_exponential(capped_x - slope.most) * slope.weight;
      if constexpr (SOFT) {
        y -= slope.hit * probability(row, t, i);
      } else {
        y -= slope.spread;
        if (e + i == slope.target) y -= slope.hit;
      }
      x[i] = row.cap > 0 ? y * (1 - curve * curve) : y;
    }
    put_vector(args, d, e, x);
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

  static DEVICE i64 number_of(const Args& args) {
    i64 number = 0;
    for (i32 i = 0; i < args.parts; ++i) number += args.counts[i];
    return number;
  }

  static DEVICE void run(const Args& args) {
    Row row;
    row.lanes = BY_BLOCK ? i32(blockDim.x) : 1 << args.log_lanes;
    row.rank = BY_BLOCK ? i32(threadIdx.x) : i32(threadIdx.x) & (row.lanes - 1);
    const int groups = BY_BLOCK ? 1 : int(blockDim.x) >> args.log_lanes;
    const int group = BY_BLOCK ? 0 : int(threadIdx.x) >> args.log_lanes;
    const i64 number = i64(blockIdx.x) * groups + group;
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
    row.x = args.logits + at[0];
    row.t = static_cast<const T*>(args.target) + (SOFT ? at[1] : 0);
    row.end = counts ? args.n : 0;
    row.cap = A(args.softcap);
    row.inverse = row.cap > 0 ? A(1) / row.cap : A(0);
    row.smooth = args.label_smoothing > 0;
    row.from = 0;
    row.keep = 1 - A(args.label_smoothing);
    row.spread = A(args.label_smoothing) / A(args.n);

    Vec<T, V> held[HELD], soft[HELD];
    UNROLL for (int h = 0; h < HELD; ++h) {
      held[h] = fetch<V, ACCESS>(row.x, args.step[0], element(row, h), row.end);
      soft[h] = fetch_soft(args, row, element(row, h));
    }
    State s{nothing(), A(0), A(0), A(0)};
    if (counts) {
      if (!SOFT && row.rank == 0) s.at[3] = capped(row, widen(row.x[target * args.step[0]]));
      const A first = !SOFT && row.smooth ? capped(row, widen(row.x[0])) : A(0);
      if (first - first == 0) row.from = first;
    }
    UNROLL for (int h = 0; h < HELD; ++h) {
      if (element(row, h) < row.end) take(row, element(row, h), held[h], soft[h], s);
    }
    extern __shared__ __align__(16) u32 chip[];
    Vec<T, V>* const room = reinterpret_cast<Vec<T, V>*>(chip) + threadIdx.x;
    if constexpr (LOOPS) {
      constexpr int MANY = WIDE ? (SOFT ? 2 : 4) : 1;
      for (i32 h = HELD; element(row, h) < row.end; h += MANY) {
        Vec<T, V> more[MANY], beside[MANY];
        UNROLL for (int k = 0; k < MANY; ++k) {
          more[k] = fetch<V, ACCESS>(row.x, args.step[0], element(row, h + k), row.end);
          beside[k] = fetch_soft(args, row, element(row, h + k));
        }
        UNROLL for (int k = 0; k < MANY; ++k) {
          if (element(row, h + k) >= row.end) continue;
          if (GRADIENT && h + k - HELD < args.kept) room[(h + k - HELD) * blockDim.x] = more[k];
          take(row, element(row, h + k), more[k], beside[k], s);
        }
      }
    }
    const auto joined = [](const State& a, const State& b) { return join(a, b); };
    if constexpr (BY_BLOCK) {
      using Meet = Rooms<State>;
      __shared__ Meet rooms;
      int turn = 0;
      s = join_block(s, State{nothing(), A(0), A(0), A(0)}, rooms, turn, joined);
    } else {
      s = join_lanes(s, row.lanes, joined);
    }

    // Relative to the largest logit, so that nothing large cancels.
    const A most = s.at[0], log_sum = logarithm(s.at[1]), norm = most + log_sum;
    const A smooth = A(args.label_smoothing), z = A(args.z_loss);
    if constexpr (LOSS) {
      A hit = s.at[3] - most;
      if (row.smooth) {
        const A mean = s.at[2] / A(args.n) + (row.from - most);
        hit = fused(hit, 1 - smooth, mean * smooth);
      }
      A loss = log_sum - hit;
      if constexpr (SOFT) loss = fused(log_sum, s.at[3], -s.at[2]);
      if (z > 0) loss = fused(norm * z, norm, loss);
      if (!counts) loss = 0;
      if (!reduced) {
        if (exists && row.rank == 0) narrow(loss, args.loss[at[3]]);
      } else if constexpr (BY_BLOCK) {
        if (row.rank == 0) args.sums[blockIdx.x] = loss;
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
      A share = LOSS ? A(1) : widen(args.dloss[reduced ? 0 : at[3]]);
      if (args.parts) share = share / A(number_of(args));
      if (SOFT && args.flags & EQUAL_SHARES) share = share / A(args.rows);
      Slope slope;
      slope.most = most;
      A pull = SOFT ? s.at[3] : A(1);
      if (z > 0) pull += 2 * z * norm;
      slope.weight = share / s.at[1] * pull;
      slope.spread = share * smooth / A(args.n);
      slope.hit = SOFT ? share : share * (1 - smooth);
      slope.target = i32(target);
      UNROLL for (int h = 0; h < HELD; ++h) {
        const i32 e = element(row, h);
        if (e < row.end) put_slopes(args, d, row, e, held[h], soft[h], slope);
      }
      if constexpr (LOOPS) {
        for (i32 h = HELD; element(row, h) < row.end; ++h) {
          const i32 e = element(row, h);
          Vec<T, V> v;
          if (h - HELD < args.kept) {
            v = room[(h - HELD) * blockDim.x];
          } else {
            v = fetch<V, ACCESS>(row.x, args.step[0], e, row.end);
          }
          put_slopes(args, d, row, e, v, fetch_soft(args, row, e), slope);
        }
      }
    }
  }
};

template <class T, int WAY, int HELD, bool WIDE, bool ADD>
using CrossEntropy = Entropy<true, false, false, T, WAY, HELD, WIDE, ADD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD>
using CrossEntropyBackward = Entropy<false, true, false, T, WAY, HELD, WIDE, ADD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD>
using CrossEntropyWithGradient = Entropy<true, true, false, T, WAY, HELD, WIDE, ADD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD>
using SoftCrossEntropy = Entropy<true, false, true, T, WAY, HELD, WIDE, ADD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD>
using SoftCrossEntropyBackward = Entropy<false, true, true, T, WAY, HELD, WIDE, ADD>;
template <class T, int WAY, int HELD, bool WIDE, bool ADD>
using SoftCrossEntropyWithGradient = Entropy<true, true, true, T, WAY, HELD, WIDE, ADD>;

// How many targets are classes and not ignored; each block leaves the number of its run.
struct Counts {
  static constexpr int RESIDENT = 1;

  struct Args {
    const void* target;
    i32* counts;
    i64 rows, run, classes, ignored;
    u32 wide, pad;
    Walk<0, 1, i64> walk;
  };

  static DEVICE void run(const Args& args) {
    const i64 first = i64(blockIdx.x) * args.run, end = first + args.run;
    i32 sum = 0;
    for (i64 row = first + threadIdx.x; row < end && row < args.rows; row += blockDim.x) {
      i64 at[1];
      args.walk.template offsets<1>(row, at);
      const i64 target = entry_of(args.target, at[0], args.wide);
      sum += target != args.ignored && u64(target) < u64(args.classes);
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) args.counts[blockIdx.x] = sum;
  }
};

}  // namespace baracuda
