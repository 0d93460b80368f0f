// Sums of units: elements of one part of the bins that lie sorted by chunks. See partition.cuh.
#pragma once
#include "partition.cuh"
#ifdef __CUDACC__

namespace baracuda {

// A unit has fewer than 2^17 elements: so many bits of the first digit, and of the others, which
// are rounded and have a sign, leave room for the carries of all in one bin.
constexpr int TOP = 31 - 17, LOW = 32 - 17;

// The elements that are added at one scale: with the exponents of the keys from `floor` to `upper`,
// so few that their integers are exact, or what is not finite.
template <class T> struct Window {
  using A = Acc<T>;
  using B = Bits<A>;
  static constexpr int WIDTH = TOP + (Exact<T>::WORDS - 1) * LOW - Exact<T>::MANTISSA;

  u32 upper, floor;
  A up, down, lift, drop;  // lift and drop: the scale in two factors, where one leaves the range
  bool finite, plain;      // plain: lift and drop are 1

  DEVICE Window(u32 upper) : upper(upper) {
    const int exponent = greater(int(upper / B::ONE), 1);
    finite = upper < B::NOT_FINITE;
    floor = exponent - WIDTH > 1 ? u32(exponent - WIDTH) * B::ONE : 1;
    if (!finite) floor = B::NOT_FINITE;
    u32 key = finite ? u32(exponent) * B::ONE : B::SMALL;
    const bool small = key < B::SMALL;
    if (small) key += B::SMALL;
    plain = finite && !small;
    up = factor<A>(key, TOP);
    down = B::power(key + (1 - TOP - LOW) * B::ONE);
    lift = small ? B::power(B::BIAS * B::ONE + B::SMALL) : A(1);
    drop = small ? B::power(B::BIAS * B::ONE - B::SMALL) : A(1);
  }
  // All of a segment, or some of it.
  DEVICE bool holds(const Segment& s) const {
    return plain && s.most <= upper && s.less + 1 >= floor;
  }
  DEVICE bool meets(const Segment& s) const { return s.less < upper; }
};

// A block sums a unit: a part's elements of some chunks. It goes over them once for each window
// that is needed, from the largest magnitudes down, of which most data has one.
template <class T> struct SumParts {
  using A = Acc<T>;
  using Sums = Bins<T>;
  using Four = typename Staged<T>::Four;
  static constexpr int RESIDENT = 2, DEPTH = sizeof(T) < 8 ? 2 : 1, WORDS = Exact<T>::WORDS;
  static constexpr u32 BINS = 1 << PART_BITS<A>;

  struct Args {
    void* stage;
    const u16* fours;
    const Segment* segments;
    A* sums;      // [units][BINS]
    u32* firsts;  // of each part: its first unit, and the end
    i64 room;
    u32 chunks, row, parts, target;  // target: fours of a unit, about
  };
  struct Unit {
    u32 part, begin, end;  // chunks
  };

  static DEVICE u32 added(const Vec<u16, 8>& x) {
    const u32 sum = x.pair[0] + x.pair[1] + x.pair[2] + x.pair[3];
    return (sum & 0xffff) + (sum >> 16);
  }

  // What the first warp of a block finds out about its unit for all others.
  struct Found {
    u32 part, from, to;  // its elements, in fours of the part
    u32 units;           // of all parts
    u32 begin, end;      // its chunks
  };

  // Shared memory: the bins, and of the segments that are under way where each ends in the stream
  // of all their fours, and what leads from there to its place in the stage.
  struct Room {
    u32 *bins, *ends, *leads, *few;

    DEVICE Room(u32* memory)
        : bins(memory), ends(memory + BINS * WORDS), leads(ends + blockDim.x),
          few(leads + blockDim.x) {}
  };

  // The unit of a block: parts have as many as their elements need, about equally large.
  static DEVICE bool find(const Args& args, const Room& room, Unit& unit) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    // A thread has `span` chunks side by side.
    const u32 span = (args.row / 8 + blockDim.x - 1) / blockDim.x * 8, from = threadIdx.x * span;
    const u32 to = from + span < args.row ? from + span : args.row;
    u32* sums = room.ends;  // [parts][warps]
    Found& found = *reinterpret_cast<Found*>(room.few);
    constexpr int ONCE = 8;
    ROLLED for (u32 first = 0; first < args.parts; first += ONCE) {
      u32 many[ONCE] = {};
      ROLLED for (u32 c = from; c < to; c += 8) {
        Vec<u16, 8> x[ONCE] = {};
        UNROLL for (int i = 0; i < ONCE; ++i) {
          if (first + i < args.parts) x[i] = load<8>(args.fours + (first + i) * args.row + c);
        }
        UNROLL for (int i = 0; i < ONCE; ++i) many[i] += added(x[i]);
      }
      UNROLL for (int i = 0; i < ONCE; ++i) {
        many[i] = __reduce_add_sync(~0u, many[i]);
        if (lane == 0 && first + i < args.parts) sums[(first + i) * warps + warp] = many[i];
      }
    }
    __syncthreads();
    if (warp == 0) {
      u32 many = 0;
      for (u32 w = 0; lane < args.parts && w < warps; ++w) many += sums[lane * warps + w];
      const u32 units = (many + args.target - 1) / args.target;
      const u32 first = sum_before(units), end = first + units;
      if (first <= blockIdx.x && blockIdx.x < end) {
        const u32 each = (many + units - 1) / units;
        found.part = lane, found.from = (blockIdx.x - first) * each;
        found.to = found.from + each;
      }
      if (lane == 31) found.units = end, found.begin = 0, found.end = 0;
      if (blockIdx.x == 0 && lane < args.parts) {
        args.firsts[lane + 1] = end;
        if (lane == 0) args.firsts[0] = 0;
      }
    }
    __syncthreads();
    if (blockIdx.x >= found.units) return false;
    // A chunk belongs to the unit in which its first four is.
    unit.part = found.part;
    const u16* fours = args.fours + unit.part * args.row;
    u32 own = 0, begin = 0, end = 0;
    for (u32 c = from; c < to; c += 8) own += added(load<8>(fours + c));
    u32 before = sum_before(own);
    for (u32 w = 0; w < warp; ++w) before += sums[unit.part * warps + w];
    for (u32 c = from; c < to; c += 8) {
      const Vec<u16, 8> many = load<8>(fours + c);
      UNROLL for (int i = 0; i < 8; ++i) {
        begin += before < found.from;
        end += before < found.to;
        before += many.get(i);
      }
    }
    begin = __reduce_add_sync(~0u, begin);
    end = __reduce_add_sync(~0u, end);
    if (lane == 0) atomicAdd(&found.begin, begin), atomicAdd(&found.end, end);
    __syncthreads();
    unit.begin = found.begin;
    unit.end = found.end < args.chunks ? found.end : args.chunks;
    __syncthreads();
    return true;
  }

  // The stream of segments, one of each thread: how many fours there are.
  static DEVICE u32 line_up(const Room& room, const Segment& mine, u32 chunk, bool taken) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 fours = taken ? mine.fours : 0, before = sum_before(fours);
    __syncthreads();
    if (lane == 31) room.few[warp] = before + fours;
    __syncthreads();
    const u32 other = lane < warps ? room.few[lane] : 0;
    const u32 begin = before + __reduce_add_sync(~0u, lane < warp ? other : 0);
    room.ends[threadIdx.x] = begin + fours;
    room.leads[threadIdx.x] = chunk * (CHUNK_ROOM / 4) + mine.begin - begin;
    __syncthreads();
    return __reduce_add_sync(~0u, other);
  }

  // A lane's way along the stream.
  struct Cursor {
    const Room& room;
    const Staged<T> from;
    u32 at, segment, end, lead;

    DEVICE Cursor(const Args& args, const Room& room, u32 at)
        : room(room), from(args.stage, args.room, 0), at(at), segment(0) {
      // The first that ends behind `at`; a stream is never longer than its segments.
      for (u32 step = blockDim.x / 2; step; step /= 2) {
        if (room.ends[segment + step - 1] <= at) segment += step;
      }
      end = room.ends[segment], lead = room.leads[segment];
    }
    DEVICE Four next() {
      while (at >= end) ++segment, end = room.ends[segment], lead = room.leads[segment];
      const Four four = from.fetch(i64(lead + at) * 4);
      at += 32;
      return four;
    }
  };

  // Add four elements of each lane, or none. Where all bins of a warp are one, its elements first.
  static DEVICE void add(const Four& four, bool there, const Sums& sums, A up) {
    const u32 bin = __shfl_sync(~0u, Staged<T>::bin(four, 0), 0);
    bool same = there;
    UNROLL for (int v = 0; v < 4; ++v) same &= Staged<T>::bin(four, v) == bin;
    if (__all_sync(~0u, same)) {
      u32 sum[WORDS] = {};
      UNROLL for (int v = 0; v < 4; ++v) {
        u32 digit[WORDS];
        cut_up(Staged<T>::value(four, v) * up, LOW, digit);
        UNROLL for (int w = 0; w < WORDS; ++w) sum[w] += digit[w];
      }
      UNROLL for (int w = 0; w < WORDS; ++w) {
        sum[w] = __reduce_add_sync(~0u, sum[w]);
        if ((threadIdx.x & 31) == 0) atomicAdd(sums.one().at(bin, w), sum[w]);
      }
    } else if (there) {
      UNROLL for (int v = 0; v < 4; ++v) {
        sums.add(Staged<T>::bin(four, v), Staged<T>::value(four, v) * up);
      }
    }
  }

  // Add what a window has of four elements; the largest key of what is below.
  static DEVICE u32 pick(const Four& four, const Sums& sums, const Window<T>& window) {
    u32 below = 0;
    UNROLL for (int v = 0; v < 4; ++v) {
      const A x = Staged<T>::value(four, v);
      const u32 bin = Staged<T>::bin(four, v), key = Bits<A>::key(x);
      if (key < window.floor) {
        below = below > key ? below : key;
      } else if (key <= window.upper) {
        if (window.finite) {
          sums.add(bin, x * window.lift * window.up);
        } else {
          atomicOr(sums.one().at(bin, 0), flags(x));
        }
      }
    }
    return below;
  }

  // Add what a window has of a unit: of segments that it holds, and of those that it meets.
  static DEVICE u32 sweep(
      const Args& args, const Unit& unit, const Room& room, const Sums& sums,
      const Window<T>& window) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u32 below = 0;
    ROLLED for (u32 first = unit.begin; first < unit.end; first += blockDim.x) {
      const u32 chunk = first + threadIdx.x;
      Segment mine{0, 0, 0, ~0u};
      if (chunk < unit.end) mine = args.segments[unit.part * args.chunks + chunk];
      const bool met = window.meets(mine), held = met && window.holds(mine);
      ROLLED for (int whole = 1; whole >= 0; --whole) {
        const u32 all = line_up(room, mine, chunk, whole ? held : met && !held);
        if (all == 0) continue;
        // Whole steps for each warp, but for the last.
        const u32 share = (all + 32 * warps - 1) / (32 * warps) * 32, begin = warp * share;
        const u32 end = begin + share < all ? begin + share : all;
        if (begin >= end) continue;
        Cursor cursor(args, room, begin + lane < end ? begin + lane : begin);
        cursor.at = begin + lane;
        if (whole) {
          Four next[DEPTH] = {};
          UNROLL for (int d = 0; d < DEPTH; ++d) {
            if (cursor.at < end) next[d] = cursor.next();
          }
          ROLLED for (u32 at = begin + lane; at - lane < end; at += 32 * DEPTH) {
            Four four[DEPTH];
            UNROLL for (int d = 0; d < DEPTH; ++d) {
              four[d] = next[d];
              if (cursor.at < end) next[d] = cursor.next();
            }
            UNROLL for (int d = 0; d < DEPTH; ++d) {
              add(four[d], at + 32 * d < end, sums, window.up);
            }
          }
        } else {
          ROLLED while (cursor.at < end) {
            const u32 rest = pick(cursor.next(), sums, window);
            below = below > rest ? below : rest;
          }
        }
      }
    }
    return below;
  }

  static DEVICE void write(A* to, const Sums& sums, const Window<T>& window, bool again) {
    constexpr int STEP = 16 / sizeof(A);
    for (u32 bin = threadIdx.x * 4; bin < BINS; bin += blockDim.x * 4) {
      u32 word[4][WORDS];
      A fresh[4];
      sums.one().template read<4>(bin, word);
      sums.sums(word, fresh);
      UNROLL for (int i = 0; i < 4; i += STEP) {
        Vec<A, STEP> x{};
        if (again) x = load<STEP>(to + bin + i);
        UNROLL for (int j = 0; j < STEP; ++j) {
          const u32 first = word[i + j][0];
          A sum = 0;
          if (window.finite) {
            sum = fresh[i + j] * window.down * window.drop;
          } else if (first) {
            sum = not_finite<A>(first);
          }
          x.set(j, x.get(j) + sum);
        }
        store<STEP>(to + bin + i, x);
      }
    }
  }

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    const Room room(memory);
    const Sums sums{room.bins, BINS, LOW};
    sums.one().clear();
    Unit unit;
    if (!find(args, room, unit)) return;
    Range range;
    for (u32 c = unit.begin + threadIdx.x; c < unit.end; c += blockDim.x) {
      const u32 most = args.segments[unit.part * args.chunks + c].most;
      range.most = range.most > most ? range.most : most;
    }
    range.join();
    for (bool again = false;; again = true) {
      const Window<T> window(range.most);
      range.most = sweep(args, unit, room, sums, window);
      // All have added, and know the largest key that is left.
      range.join();
      write(args.sums + i64(blockIdx.x) * BINS, sums, window, again);
      if (range.most == 0) return;
      __syncthreads();
      sums.one().clear();
      __syncthreads();
    }
  }
};

// The sums of a part's units, added up by the warps of a block, each some of them, rounded once.
template <class T, class I, bool ADD> struct JoinParts {
  using A = Acc<T>;
  static constexpr int RESIDENT = 4, V = 16 / sizeof(A), ONCE = 4;

  struct Args {
    const A* sums;
    const u32* firsts;
    T* target;
    u32 bins, pad;
    Walk<0, 2, I> walk;  // bins, target
  };

  static DEVICE void run(const Args& args) {
    extern __shared__ __align__(16) u32 memory[];
    A* parts = reinterpret_cast<A*>(memory);  // [warps][WIDE]
    constexpr u32 WIDE = 32 * V, SHIFT = PART_BITS<A>;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 first = blockIdx.x * WIDE, part = first >> SHIFT, end = args.firsts[part + 1];
    const A* from = args.sums + (first & ((1 << SHIFT) - 1)) + lane * V;
    Vec<A, V> sum{};
    ROLLED for (u32 u = args.firsts[part] + warp; u < end; u += warps * ONCE) {
      Vec<A, V> x[ONCE] = {};
      UNROLL for (int i = 0; i < ONCE; ++i) {
        if (u + i * warps < end) x[i] = load<V>(from + (i64(u + i * warps) << SHIFT));
      }
      UNROLL for (int i = 0; i < ONCE; ++i) {
        UNROLL for (int v = 0; v < V; ++v) sum.set(v, sum.get(v) + x[i].get(v));
      }
    }
    store<V>(parts + warp * WIDE + lane * V, sum);
    __syncthreads();
    const u32 bin = first + threadIdx.x;
    if (threadIdx.x >= WIDE || bin >= args.bins) return;
    A x[1] = {0};
    for (u32 w = 0; w < warps; ++w) x[0] += parts[w * WIDE + threadIdx.x];
    I at[2];
    args.walk.template offsets<1>(I(bin), at);
    put<ADD>(args.target + at[1], x);
  }
};

}  // namespace baracuda
#endif
