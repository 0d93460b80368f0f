// Heads schedule: rows of two arrays, q and k, one for each head of a position. Each is normalised,
// scaled by a weight, and turned in pairs by the angles of its position; or the gradient of that.
//
// A warp takes a position, or one of some slices of its heads: it makes the angles once, and walks
// over the heads of q, then of k, as many at once as it has runs of lanes. A lane owns HELD chunks
// of a head, each two parts of V elements, so that both elements of a pair are its own: parts are
// half of what turns apart, so that neighbouring lanes access neighbouring vectors. Single elements
// of interleaved pairs lie side by side. Chunks that turn come first. Where not every part is an
// aligned vector (VECTOR), they move element by element. ROUND: what is normalised is rounded to T
// before it is scaled.
//
// Angles and scales are on chip in the accumulate type, a part of 16 bytes of each chunk next to
// that of the next chunk: no two lanes of a run want the same bank. So are sums of gradients of the
// weights, of which every thread has its own.
#pragma once
#include "angles.cuh"
#include "reduce.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

template <
    class F, class T, class W, class SOURCE, bool INTERLEAVED, int V, int HELD, bool VECTOR,
    bool ROUND>
struct Heads {
  using A = Acc<T>;
  static constexpr int LOADS = F::loads, OPERANDS = 2 * LOADS + 4;
  static constexpr int MOST_WARPS = 8, MOST = 5;
  static constexpr bool BACK = LOADS == 2;
  // Registers of a block of 256 threads: for more vectors in flight than threads could have.
  static constexpr int RESIDENT = sizeof(A) == 8 || HELD > 2 ? 1 : BACK || HELD == 2 ? 2 : 3;
  // Parts on chip: elements of one, and how many make a vector.
  static constexpr int PART = lesser(V, 16 / sizeof(A)), MANY = V / PART;
  // From a part on chip to the next of the same chunk: a constant, so that no address is computed.
  static constexpr int ROOM = 32 * HELD;
  // Both elements of a pair in one part.
  static constexpr bool WITHIN = INTERLEAVED && V > 1;
  using Part = Vec<A, PART>;

  // Heads of q, or of k: how many, and how loads and the result lie.
  struct Side {
    i32 heads, add;
    i64 stride[LOADS + 1], inner[LOADS + 1];
  };
  struct Args {
    const T* in[LOADS][2];
    T* out[2];
    const W* weight[2];
    A* sums;
    typename SOURCE::Pointers angles;
    f64 eps, offset, share;
    i64 tasks, weight_step[2];
    Extent<u64> slices;
    i32 length, chunks, turning, half, rest, apart, log_lanes, pad;
    Side side[2];
    Walk<0, OPERANDS, i64, MOST> place;  // loads of q and k, results, what angles are made from
    typename SOURCE::template Numbers<i64> source;
  };

  // Where a part of a chunk begins.
  static DEVICE int start(const Args& args, int chunk, int part) {
    constexpr bool BESIDE = INTERLEAVED && !WITHIN;
    constexpr int STEP = BESIDE ? 2 * V : V;
    const bool turns = chunk < args.turning;
    const int first = turns ? chunk * STEP : args.rest + (chunk - args.turning) * STEP;
    return first + part * (BESIDE ? V : turns ? args.half : args.apart);
  }
  // Which pair of a head is the j-th of a chunk.
  static DEVICE int pair(const Args& args, int chunk, int j) {
    if constexpr (!WITHIN) return chunk * V + j;
    constexpr int PAIRS = greater(V / 2, 1);
    return j / PAIRS * (args.half / 2) + chunk * PAIRS + j % PAIRS;
  }
  static DEVICE bool exists(const Args& args, int chunk, int part) {
    return chunk < args.chunks && (V > 1 || start(args, chunk, part) < args.length);
  }

  // On chip: what angles come from, and where the arrays of each warp's task begin.
  struct Near {
    typename SOURCE::Kept source;
    i64 at[MOST_WARPS][OPERANDS];
  };

  // A head's loads.
  struct Flight {
    Vec<T, V> v[LOADS][HELD][2];
  };

  // What a lane knows of a task. On chip its parts lie from its first chunk on.
  struct Task {
    const i64* at;
    const Part* angles;
    const Part* scales;
    Part* sums;
    int lane, lanes, group, groups;
    // Of its chunks: where their parts begin, which are there, and which turn.
    int start[HELD][2];
    bool there[HELD][2], turns[HELD];
  };

  // Where a lane's head lies.
  struct Place {
    const T* from[LOADS];
    T* to;

    DEVICE void advance(const i64 (&step)[LOADS + 1]) {
      UNROLL for (int k = 0; k < LOADS; ++k) from[k] += step[k];
      to += step[LOADS];
    }
  };

  static DEVICE void fetch(
      const Side& side, const Task& task, const Place& place, bool there, Flight& flight) {
    UNROLL for (int k = 0; k < LOADS; ++k) {
      UNROLL for (int h = 0; h < HELD; ++h) {
        UNROLL for (int p = 0; p < 2; ++p) {
          Vec<T, V>& v = flight.v[k][h][p];
          v = {};
          if (!there || !task.there[h][p]) continue;
          const i64 inner = VECTOR ? 1 : side.inner[k];
          const T* const from = place.from[k] + task.start[h][p] * inner;
          if constexpr (VECTOR) {
            v = load<V>(from);
          } else {
            UNROLL for (int i = 0; i < V; ++i) v.set(i, from[i * inner]);
          }
        }
      }
    }
  }

  static DEVICE void write(const Side& side, const Task& task, T* out, int h, A (&y)[2][V]) {
    const i64 inner = VECTOR ? 1 : side.inner[LOADS];
    UNROLL for (int p = 0; p < 2; ++p) {
      if (!task.there[h][p]) continue;
      T* const to = out + task.start[h][p] * inner;
      if constexpr (VECTOR) {
        if (side.add) put<true>(to, y[p]);
        else put<false>(to, y[p]);
      } else {
        UNROLL for (int i = 0; i < V; ++i) {
          A one[1] = {y[p][i]};
          if (side.add) put<true>(to + i * inner, one);
          else put<false>(to + i * inner, one);
        }
      }
    }
  }

  // Turns the pairs of a chunk in place, where it is one that turns.
  static DEVICE void turn(const Task& task, int h, A (&x)[2][V]) {
    if (!task.turns[h]) return;
    const Part* const angles = task.angles + h * task.lanes;
    UNROLL for (int q = 0; q < MANY; ++q) {
      const Part cosine = angles[q * ROOM], sine = angles[(MANY + q) * ROOM];
      UNROLL for (int i = 0; i < PART; ++i) {
        const int j = q * PART + i, a = INTERLEAVED ? 2 * j : j, b = INTERLEAVED ? a + 1 : V + j;
        A c, d;
        F::turn(x[a / V][a % V], x[b / V][b % V], cosine.at[i], sine.at[i], c, d);
        x[a / V][a % V] = c;
        x[b / V][b % V] = d;
      }
    }
  }

  static DEVICE void scales(const Task& task, int s, int h, int p, A (&w)[V]) {
    const Part* const scales = task.scales + h * task.lanes;
    UNROLL for (int q = 0; q < MANY; ++q) {
      const Part v = scales[((2 * s + p) * MANY + q) * ROOM];
      UNROLL for (int i = 0; i < PART; ++i) w[q * PART + i] = v.at[i];
    }
  }

  static DEVICE void add(const Task& task, int s, int h, int p, const A (&t)[V]) {
    UNROLL for (int q = 0; q < MANY; ++q) {
      Part* const place =
          task.sums + (((s * HELD + h) * 2 + p) * MANY + q) * int(blockDim.x) + threadIdx.x;
      Part v = *place;
      UNROLL for (int i = 0; i < PART; ++i) v.at[i] += t[q * PART + i];
      *place = v;
    }
  }

  static DEVICE void normal(const A (&x)[V], A inverse, A (&y)[V]) {
    UNROLL for (int i = 0; i < V; ++i) y[i] = x[i] * inverse;
    if constexpr (ROUND) {
      Vec<T, V> v;
      narrow(y, v);
      widen(v, y);
    }
  }

  static DEVICE void head(
      const Args& args, const Task& task, int s, T* out, bool there, const Flight& flight) {
    A x[HELD][2][V], pulled[HELD][2][V];
    Several<A, LOADS> sum{};
    UNROLL for (int h = 0; h < HELD; ++h) {
      UNROLL for (int p = 0; p < 2; ++p) {
        widen(flight.v[LOADS - 1][h][p], x[h][p]);
        if constexpr (BACK) widen(flight.v[0][h][p], pulled[h][p]);
        UNROLL for (int i = 0; i < V; ++i) {
          sum.at[0] = fused(x[h][p][i], x[h][p][i], sum.at[0]);
        }
      }
      if constexpr (BACK) {
        turn(task, h, pulled[h]);
        UNROLL for (int p = 0; p < 2; ++p) {
          A w[V];
          scales(task, s, h, p, w);
          UNROLL for (int i = 0; i < V; ++i) {
            sum.at[1] = fused(pulled[h][p][i] * w[i], x[h][p][i], sum.at[1]);
          }
        }
      }
    }
    sum = join_lanes(sum, task.lanes, Added<A, LOADS>{});
    const A share = A(args.share), inverse = inverse_root(sum.at[0] * share + A(args.eps));
    UNROLL for (int h = 0; h < HELD; ++h) {
      A y[2][V];
      UNROLL for (int p = 0; p < 2; ++p) {
        A w[V];
        scales(task, s, h, p, w);
        normal(x[h][p], inverse, y[p]);
        if constexpr (BACK) {
          const A along = sum.at[1] * inverse * share * inverse;
          UNROLL for (int i = 0; i < V; ++i) y[p][i] *= pulled[h][p][i];
          // Of a head that is not there all is 0, and eps may be too: that is no number.
          if (there) add(task, s, h, p, y[p]);
          UNROLL for (int i = 0; i < V; ++i) {
            y[p][i] = inverse * fused(-x[h][p][i], along, pulled[h][p][i] * w[i]);
          }
        } else {
          UNROLL for (int i = 0; i < V; ++i) y[p][i] *= w[i];
        }
      }
      if constexpr (!BACK) turn(task, h, y);
      if (there) write(args.side[s], task, out, h, y);
    }
  }

  // Every `slices`-th of the heads of q, or of k, that a warp takes at once, from the first on.
  static DEVICE void walk(const Args& args, const Task& task, int s, i32 first, i32 slices) {
    const Side& side = args.side[s];
    const i32 by = slices * task.groups;
    i32 own = first + task.group;  // the head of the lane
    i64 step[LOADS + 1];
    UNROLL for (int k = 0; k <= LOADS; ++k) step[k] = by * side.stride[k];
    Place place;
    UNROLL for (int k = 0; k < LOADS; ++k) {
      place.from[k] = args.in[k][s] + task.at[2 * k + s] + own * side.stride[k];
    }
    place.to = args.out[s] + task.at[2 * LOADS + s] + own * side.stride[LOADS];
    Flight next;
    fetch(side, task, place, own < side.heads, next);
    ROLLED while (first < side.heads) {
      const Flight now = next;
      const bool there = own < side.heads;
      T* const out = place.to;
      first += by;
      own += by;
      place.advance(step);
      // What is next is on its way while a head is computed, where there is room for both.
      if (HELD == 1 && first < side.heads) fetch(side, task, place, own < side.heads, next);
      head(args, task, s, out, there, now);
      if (HELD > 1) fetch(side, task, place, own < side.heads, next);
    }
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    __shared__ Near near;
    near.source.fill(args.source, args.turning * V);
    Task task;
    task.lane = int(threadIdx.x) % 32;
    task.lanes = 1 << args.log_lanes;
    task.group = task.lane >> args.log_lanes;
    task.groups = 32 >> args.log_lanes;
    const int warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    // Chunks of a head, a power of two as lanes are.
    const int room = task.lanes * HELD, log_room = args.log_lanes + __ffs(HELD) - 1;
    const int mine = task.lane & (task.lanes - 1);
    UNROLL for (int h = 0; h < HELD; ++h) {
      const int chunk = mine + h * task.lanes;
      task.turns[h] = chunk < args.turning;
      UNROLL for (int p = 0; p < 2; ++p) {
        task.start[h][p] = start(args, chunk, p);
        task.there[h][p] = exists(args, chunk, p);
      }
    }
    Part* const scales = reinterpret_cast<Part*>(memory);
    Part* const angles = scales + (2 + warp) * 2 * MANY * ROOM;
    i64* const at = near.at[warp];
    task.at = at;
    task.scales = scales + mine;
    task.angles = angles + mine;
    task.sums = scales + (2 + warps) * 2 * MANY * ROOM;
    for (int i = int(threadIdx.x); i < 4 * V * room; i += int(blockDim.x)) {
      const int chunk = i & room - 1, part = (i >> log_room) / V, j = (i >> log_room) % V;
      A w = 0;
      if (exists(args, chunk, part % 2)) {
        const i64 at = (start(args, chunk, part % 2) + j) * args.weight_step[part / 2];
        w = widen(args.weight[part / 2][at]) + A(args.offset);
      }
      scales[(part * MANY + j / PART) * ROOM + chunk].at[j % PART] = w;
    }
    if constexpr (BACK) {
      UNROLL for (int i = 0; i < 4 * HELD * MANY; ++i) {
        task.sums[i * int(blockDim.x) + int(threadIdx.x)] = {};
      }
    }
    __syncthreads();
    i64 number = i64(blockIdx.x) * warps + warp;
    ROLLED for (; number < args.tasks; number += i64(gridDim.x) * warps) {
      const i64 place = i64(args.slices.divide(u64(number)));
      const i64 slices = i64(args.slices.size), slice = number - place * slices;
      // Lanes may still read what is known of the task before.
      __syncwarp();
      if (task.lane < OPERANDS) at[task.lane] = args.place.offset(place, task.lane);
      __syncwarp();
      for (int i = task.lane; i < V * room; i += 32) {
        const int chunk = i & room - 1, j = i >> log_room;
        if (chunk >= args.turning) continue;
        typename SOURCE::template Chunk<1, i64> one;
        Pair<A> angle[1];
        i64 own[SOURCE::OFFSETS];
        UNROLL for (int k = 0; k < SOURCE::OFFSETS; ++k) own[k] = at[2 * LOADS + 2 + k];
        const int number = pair(args, chunk, j);
        one.load_early(args.angles, args.source, own, number);
        one.make(args.angles, near.source, own, number, angle);
        angles[j / PART * ROOM + chunk].at[j % PART] = angle[0].first;
        angles[(MANY + j / PART) * ROOM + chunk].at[j % PART] = angle[0].second;
      }
      __syncwarp();
      ROLLED for (int s = 0; s < 2; ++s) walk(
          args, task, s, i32(slice) * task.groups, i32(slices));
    }
    if constexpr (BACK) leave(args, task);
  }

  // Into the block's lines, one of q and one of k, in the order of its runs of lanes.
  static DEVICE void leave(const Args& args, const Task& task) {
    __syncthreads();
    const int threads = int(blockDim.x), items = 4 * HELD * MANY * task.lanes;
    A* const lines = args.sums + i64(blockIdx.x) * 2 * args.length;
    for (int item = int(threadIdx.x); item < items; item += threads) {
      const int rank = item % task.lanes, slot = item / task.lanes;
      const int q = slot % MANY, p = slot / MANY % 2, h = slot / MANY / 2 % HELD;
      const int chunk = rank + h * task.lanes;
      if (!exists(args, chunk, p)) continue;
      Part sum = task.sums[slot * threads + rank];
      for (int other = rank + task.lanes; other < threads; other += task.lanes) {
        const Part v = task.sums[slot * threads + other];
        UNROLL for (int i = 0; i < PART; ++i) sum.at[i] += v.at[i];
      }
      A* const to = lines + slot / MANY / 2 / HELD * args.length + start(args, chunk, p) + q * PART;
      UNROLL for (int i = 0; i < PART; ++i) to[i] = sum.at[i];
    }
  }
};

}  // namespace baracuda
#endif
