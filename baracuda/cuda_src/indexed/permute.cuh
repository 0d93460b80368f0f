// Rows of tokens and the rows that they are sent to, as in a mixture of experts: an index says for
// each of the choices of a token which row that is.
//
// A thread takes units of 16 bytes of a row in accesses of N elements, so that no order of a sum
// depends on how wide accesses are.
#pragma once
#include "common/reduce.cuh"
#include "invert_index.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Where the entry of a choice of a token is, in elements.
struct Entries {
  i64 token, choice;

  DEVICE i64 at(u32 t, u32 c) const { return t * token + c * choice; }
};

// What weighs a choice of a token: 1 where nothing does.
template <bool WEIGHTED, class Args>
DEVICE auto weight_of(const Args& args, u32 token, u32 choice) {
  using A = decltype(widened(args.weights, 0, false));
  if constexpr (!WEIGHTED) return A(1);
  else return widened(args.weights, args.of_weights.at(token, choice), args.wide);
}

// A unit of a row that begins at p: elements from `column` on.
template <int N, int V, class T>
DEVICE Vec<T, V> unit_of(const T* p, i64 row, u32 column, u32 columns) {
  Vec<T, V> v;
  load_part<V, N>(p + row * columns + column, i32(column), i32(columns), v);
  return v;
}
template <int N, int V, class O, class A>
DEVICE void keep_unit(O* p, i64 row, u32 column, u32 columns, const A (&x)[V]) {
  Vec<O, V> v;
  narrow(x, v);
  constexpr int STEP = lesser(N, 16 / int(sizeof(O)));
  store_part<V, STEP>(p + row * columns + column, i32(column), i32(columns), v);
}

// The row of each token is the sum of those that it was sent to, in the order of its choices, each
// times its weight where WEIGHTED. MANY choices are read together, by a thread that has UNITS.
template <class T, class P, class O, int N, bool WEIGHTED, int MANY, int UNITS> struct JoinRows {
  static constexpr int V = 16 / sizeof(T), RESIDENT = N == V ? 4 : 2;
  using A = Acc<T>;

  struct Args {
    const T* rows;
    const P* index;
    const T* weights;
    O* out;
    Report* listener;
    i64 extent;
    Entries of_index, of_weights;
    u32 ticket, choices, columns, items;  // items: threads of all tokens
    Extent<u32> across;                   // threads of a row, to divide by
    u32 wide;                             // whether weights are of the accumulate type
  };

  static DEVICE void run(const Args& args) {
    const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= args.items) return;
    const u32 token = args.across.divide(item), unit = item - token * args.across.size;
    A x[UNITS][V] = {};
    bool strange = false;
    ROLLED for (u32 first = 0; first < args.choices; first += MANY) {
      P row[MANY];
      Vec<T, V> value[MANY][UNITS];
      A weight[MANY];
      bool there[MANY];
      // The last choice again where there are fewer: no branch lies between two loads.
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        const u32 choice = lesser(first + j, args.choices - 1);
        row[j] = args.index[args.of_index.at(token, choice)];
      }
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        const bool known = within(row[j], args.extent);
        there[j] = first + j < args.choices && known;
        strange |= !known;
        UNROLL for (u32 u = 0; u < UNITS; ++u) {
          const u32 column = (unit + u * args.across.size) * V;
          if (there[j]) value[j][u] = unit_of<N, V>(args.rows, row[j], column, args.columns);
        }
      }
      // Each weight is waited for, as it becomes a number of another type at once.
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        weight[j] = weight_of<WEIGHTED>(args, token, lesser(first + j, args.choices - 1));
      }
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        if (!there[j]) continue;
        UNROLL for (int i = 0; i < UNITS * V; ++i) {
          x[i / V][i % V] = fused(widen(value[j][i / V], i % V), weight[j], x[i / V][i % V]);
        }
      }
    }
    UNROLL for (u32 u = 0; u < UNITS; ++u) {
      const u32 column = (unit + u * args.across.size) * V;
      keep_unit<N>(args.out, token, column, args.columns, x[u]);
    }
    // One thread of a row reports.
    if (strange && !unit && args.listener) refuse(args, token);
  }

  static DEVICE void refuse(const Args& args, u32 token) {
    ROLLED for (u32 choice = 0; choice < args.choices; ++choice) {
      const P row = args.index[args.of_index.at(token, choice)];
      const i64 place = i64(token) * args.choices + choice;
      valid(row, args.extent, args.listener, args.ticket, place);
    }
  }
};

// Each row is the sum of the tokens that are sent there, in the order of the index, each times its
// weight where WEIGHTED: then also the product of each token and its rows. Blocks take a token
// each, and bring it to the rows that have no other, MANY together; the warps of further blocks see
// to the rest.
template <class T, class P, class O, int N, bool WEIGHTED, int MANY> struct SpreadRows {
  static constexpr int V = 16 / sizeof(T), FEW = MANY < 8;
  static constexpr int RESIDENT = ((WEIGHTED ? 1 : 2) + FEW) * (1 + (N == V));
  static constexpr u32 ROWS = 8, UNITS = WEIGHTED || FEW ? 1 : 4;
  using A = Acc<T>;
  using Room = Several<A, 32 * MANY>;

  struct Args {
    const T* tokens;
    const T* rows;  // that are multiplied by tokens
    const P* index;
    const T* weights;
    const u32* order;
    const u32* offsets;
    O* out;
    T* products;
    Entries of_index, of_weights, of_products;
    Dealt dealt;
    u32 many, columns;    // tokens; elements of a row
    Extent<u32> choices;  // to divide by
    u32 wide, add, pad;   // whether weights are of the accumulate type; products are added
  };

  static DEVICE void run(const Args& args) {
    if (blockIdx.x < args.many) of_token(args, blockIdx.x);
    else of_rows(args, blockIdx.x - args.many);
  }

  static DEVICE u32 length(const Args& args, u32 row) {
    const u32* begin = args.offsets + args.dealt.place(row);
    return begin[1] - begin[0];
  }

  // Units of a token that a thread has under way, from the column `at` on.
  static DEVICE void take(const Args& args, u32 token, u32 at, Vec<T, V> (&x)[UNITS]) {
    UNROLL for (u32 u = 0; u < UNITS; ++u) {
      const u32 column = at + u * blockDim.x * V;
      if (column < args.columns) x[u] = unit_of<N, V>(args.tokens, token, column, args.columns);
    }
  }

  static DEVICE void of_token(const Args& args, u32 token) {
    __shared__ typename SpreadRows::Room rooms[2];
    int turn = 0;
    const u32 begin = threadIdx.x * V, step = UNITS * blockDim.x * V;
    ROLLED for (u32 first = 0; first < args.choices.size; first += MANY) {
      i64 to[MANY];
      u32 row[MANY];
      A weight[MANY];
      bool there[MANY], alone[MANY];
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        const u32 choice = lesser(first + j, args.choices.size - 1);
        to[j] = args.index[args.of_index.at(token, choice)];
      }
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        there[j] = first + j < args.choices.size && u64(to[j]) < args.dealt.rows;
        row[j] = there[j] ? u32(to[j]) : 0;
        alone[j] = there[j] && length(args, row[j]) == 1;
      }
      UNROLL for (u32 j = 0; j < MANY; ++j) {
        weight[j] = weight_of<WEIGHTED>(args, token, lesser(first + j, args.choices.size - 1));
      }
      Several<A, MANY> sums{};
      for (u32 at = begin; at < args.columns; at += step) {
        Vec<T, V> own[UNITS], other[MANY];
        take(args, token, at, own);
        UNROLL for (u32 j = 0; j < MANY && WEIGHTED; ++j) {
          if (there[j]) other[j] = unit_of<N, V>(args.rows, row[j], at, args.columns);
        }
        UNROLL for (u32 j = 0; j < MANY; ++j) {
          UNROLL for (u32 u = 0; u < UNITS; ++u) {
            const u32 column = at + u * blockDim.x * V;
            A x[V], y[V];
            widen(own[u], x);
            UNROLL for (int v = 0; v < V; ++v) {
              y[v] = x[v] * weight[j];
              if (WEIGHTED && there[j]) sums.at[j] = fused(x[v], widen(other[j], v), sums.at[j]);
            }
            if (!alone[j] || column >= args.columns) continue;
            keep_unit<N>(args.out, row[j], column, args.columns, y);
          }
        }
      }
      if constexpr (WEIGHTED) {
        sums = block_sums<1>(sums, rooms, turn);
        UNROLL for (u32 j = 0; j < MANY; ++j) {
          if (threadIdx.x || first + j >= args.choices.size) continue;
          const i64 at = args.of_products.at(token, first + j);
          const A old = args.add ? widened(args.products, at, args.wide) : A(0);
          deliver_one(sums.at[j] + old, args.products, at, args.wide);
        }
      }
    }
  }

  // Zeros where no token is sent, sums where several are.
  static DEVICE void of_rows(const Args& args, u32 block) {
    const u32 lane = threadIdx.x & 31, warp = block * (blockDim.x / LANES) + warp_of_block();
    const u32 row = warp * ROWS + lane;
    const bool mine = lane < ROWS && row < args.dealt.rows;
    const u32 begin = mine ? args.offsets[args.dealt.place(row)] : 0;
    const u32 entries = mine ? length(args, row) : 1;
    u32 rest = __ballot_sync(~0u, entries != 1);
    ROLLED for (; rest; rest &= rest - 1) {
      const int from = __ffs(int(rest)) - 1;
      const u32 to = __shfl_sync(~0u, row, from), many = __shfl_sync(~0u, entries, from);
      const u32* order = args.order + __shfl_sync(~0u, begin, from);
      for (u32 at = lane * V; at < args.columns; at += LANES * V) {
        A x[V] = {};
        ROLLED for (u32 i = 0; i < many; ++i) {
          const u32 token = args.choices.divide(order[i]);
          const u32 choice = order[i] - token * args.choices.size;
          const auto value = unit_of<N, V>(args.tokens, token, at, args.columns);
          const A weight = weight_of<WEIGHTED>(args, token, choice);
          UNROLL for (int v = 0; v < V; ++v) x[v] = fused(widen(value, v), weight, x[v]);
        }
        keep_unit<N>(args.out, to, at, args.columns, x);
      }
    }
  }
};

}  // namespace baracuda
#endif
