// Window schedule: one value for every window that slides over the last axes of an array.
//
// A functor F has `lift(x)`, what a cell adds, `join(sum, cell)`, `lower(sum, odd)`, which says
// whether the sum is out of the range of the fast form, `extreme(x)`, whether this cell may be why,
// and `careful(cells)`, which holds for any values. One that is not INLINED calls what takes long
// to compile, and lifts several cells at once: `lift(cells)`.
#pragma once
#include "index.cuh"
#include "vec.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Where the cells of one window are. The run-time form of the geometry, for any strides.
template <class I> struct Window {
  I row, column, rows, columns;  // first cell, and how many of them are inside
};

template <class I>
DEVICE Window<I> window_at(I o_row, I o_column, I kh, I kw, I sh, I sw, I h, I w) {
  const I row = o_row * sh, column = o_column * sw;
  return {row, column, row + kh <= h ? kh : h - row, column + kw <= w ? kw : w - column};
}

// Reads the cells of a window one by one.
template <class T, class I> struct Cells {
  const T* first;
  I rows, columns, row_stride, column_stride;

  template <class Visit> DEVICE void each(Visit visit) const {
    ROLLED for (I i = 0; i < rows; ++i) {
      ROLLED for (I j = 0; j < columns; ++j) {
        visit(widen(first[i * row_stride + j * column_stride]));
      }
    }
  }
};

// One thread per window, sizes and strides at run time.
template <class F, class T, class I> struct WindowAny {
  static constexpr int RESIDENT = sizeof(T) < 8 ? 4 : 2;
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;

  struct Args {
    const T* x;
    T* y;
    F f;
    I items, height, width, kh, kw, sh, sw;
    I row[2], column[2];  // strides of x and y
    Extent<U> windows_h, windows_w;
    U pad;
    Walk<0, 2, I> plane;
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    const U line = args.windows_w.divide(U(item)), plane = args.windows_h.divide(line);
    const I column = I(U(item) - line * args.windows_w.size);
    const I row = I(line - plane * args.windows_h.size);
    I base[2];
    args.plane.template offsets<1>(I(plane), base);
    const Window<I> w = window_at(
        row, column, args.kh, args.kw, args.sh, args.sw, args.height, args.width);
    const T* first = args.x + base[0] + w.row * args.row[0] + w.column * args.column[0];
    A y[1] = {args.f.careful(Cells<T, I>{first, w.rows, w.columns, args.row[0], args.column[0]})};
    put<false>(args.y + base[1] + row * args.row[1] + column * args.column[1], y);
  }
};

// What a warp stores of the V elements of each lane, so that lanes next to each other write what is
// next to each other, A elements each. A short access by every lane to its own elements would send
// L2 parts of sectors, each at the price of a whole one.
template <class T, int V, int A, class I> struct WarpStore {
  static constexpr int PIECES = V / A;
  using Staged = Vec<T, V>[32];
  Staged& warp;
  I at[PIECES];
  int rows[PIECES];

  // A lane says where its elements are in the first row, how many of them and in how many rows.
  DEVICE WarpStore(Staged& warp, I offset, int elements, int count) : warp(warp) {
    // Lanes that store all of their own by themselves ask nobody: some have left by now.
    if constexpr (PIECES > 1) {
      UNROLL for (int k = 0; k < PIECES; ++k) {
        const int element = (k * 32 + lane()) * A, owner = element / V;
        at[k] = __shfl_sync(~0u, offset, owner) + element % V;
        const int end = __shfl_sync(~0u, elements, owner);
        rows[k] = __shfl_sync(~0u, count, owner);
        if (element % V >= end) rows[k] = 0;
      }
    }
  }

  static DEVICE int lane() { return int(threadIdx.x) % 32; }

  // The elements of some row, which begins at y where the first one does.
  DEVICE void store_row(T* y, int row, const Vec<T, V>& own) const {
    __syncwarp();
    warp[lane()] = own;
    __syncwarp();
    UNROLL for (int k = 0; k < PIECES; ++k) {
      const T* piece = reinterpret_cast<const T*>(warp) + (k * 32 + lane()) * A;
      if (row < rows[k]) store<A>(y + at[k], load<A>(piece));
    }
  }
};

// Sizes at compile time: a thread owns V windows side by side in each of R rows. All the cells they
// need are in flight before the first is used; what neighbours read again comes from L1. XA and YA
// are the elements per access to x and y; WARPS is 0 where those to y are as wide as V, else that
// of the block, which then stores by warps.
template <
    class F, class T, int KH, int KW, int SH, int SW, int R, int V, int XA, int YA, int WARPS,
    class I>
struct WindowTile {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr int MAIN = V * SW, HALO = greater(KW - SW, 0);
  static constexpr int HA = XA % 2 == 0 && HALO % 2 == 0 ? 2 : 1;
  static constexpr int LINES = (R - 1) * SH + KH;
  // On an H200 what a block more in flight brings exceeds what fewer registers cost: k3 s1 p3 in
  // bf16 goes from 0.78 to 0.84 of the copy ceiling with 4.
  static constexpr bool SMALL =
      KH * KW < 10 && XA > 1 && sizeof(T) < 8 && sizeof(I) == 4 && F::INLINED;
  static constexpr int RESIDENT =
      SMALL ? (LINES > 7 ? 3 : 4) : sizeof(T) == 8 ? 1 : LINES > 4 ? 2 : 3;

  struct Args {
    const T* x;
    T* y;
    F f;
    I items, height, width, windows_h, windows_w, pad;
    I plane[2], row[2];  // strides of x and y
    Extent<U> groups, strips;
  };

  struct Line {
    Vec<T, MAIN> main;
    Vec<T, greater(HALO, 1)> halo;

    DEVICE A cell(int i) const { return i < MAIN ? widen(main, i) : widen(halo, i - MAIN); }
  };

  // Whether a row of cells, or one of a line, is in any window.
  static HD constexpr bool row_used(int l) { return l % SH < KH; }
  static HD constexpr bool used(int i) { return i % SW < KW; }

  // Cells of row h from a column on, which are at x; what is not there is 0.
  static DEVICE void fetch(const Args& args, const T* x, I h, I column, Line& line) {
    const I end = h < args.height ? args.width : 0;
    load_part<MAIN, XA>(x, column, end, line.main);
    if constexpr (HALO > 0) load_part<HALO, HA>(x + MAIN, column + MAIN, end, line.halo);
  }

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (!WARPS && item >= args.items) return;
    const U strip = args.groups.divide(U(item)), plane = args.strips.divide(strip);
    const I own = I(U(item) - strip * args.groups.size) * V, column = own * SW;
    const I o = I(strip - plane * args.strips.size) * R;
    // Behind the last item there are neither rows of cells nor of windows.
    const I h = item < args.items ? o * SH : args.height;
    const I count = item < args.items ? args.windows_h - o : 0;
    const T* const x = args.x + I(plane) * args.plane[0] + h * args.row[0] + column;
    Line line[LINES];
    const T* p = x;
    UNROLL for (int l = 0; l < LINES; ++l, p += args.row[0]) {
      if (row_used(l)) fetch(args, p, h + l, column, line[l]);
    }
    const I offset = I(plane) * args.plane[1] + o * args.row[1] + own, left = args.windows_w - own;
    T* const y = args.y + offset;
    using ByWarp = WarpStore<T, V, YA, I>;
    __shared__ typename ByWarp::Staged staged[greater(WARPS, 1)];
    const ByWarp by_warp(
        staged[WARPS ? threadIdx.x / 32 : 0], offset, int(left < V ? left : V),
        int(count < R ? count : R));
    A down[R][MAIN + HALO];  // joined over the rows of a window
    bool odd = false;
    UNROLL for (int l = 0; l < LINES; ++l) {
      if (!row_used(l)) continue;
      A cells[MAIN + HALO];
      if constexpr (!F::INLINED) {
        UNROLL for (int i = 0; i < MAIN + HALO; ++i) cells[i] = used(i) ? line[l].cell(i) : A(0);
        args.f.lift(cells);
      }
      UNROLL for (int i = 0; i < MAIN + HALO; ++i) {
        if (!used(i)) continue;
        const A cell = F::INLINED ? args.f.lift(line[l].cell(i)) : cells[i];
        UNROLL for (int r = 0; r < R; ++r) {
          const int k = l - r * SH;
          if (k >= 0 && k < KH) down[r][i] = k ? args.f.join(down[r][i], cell) : cell;
        }
      }
      UNROLL for (int r = 0; r < R; ++r) {
        if (l != r * SH + KH - 1) continue;
        A sum[V];
        UNROLL for (int v = 0; v < V; ++v) {
          sum[v] = down[r][v * SW];
          UNROLL for (int k = 1; k < KW; ++k) sum[v] = args.f.join(sum[v], down[r][v * SW + k]);
          sum[v] = args.f.lower(sum[v], odd);
        }
        Vec<T, V> packed;
        narrow(sum, packed);
        if constexpr (WARPS > 0) {
          by_warp.store_row(args.y + r * args.row[1], r, packed);
        } else {
          store_part<V, YA>(y + r * args.row[1], own, r < count ? args.windows_w : 0, packed);
        }
      }
    }
    if constexpr (WARPS > 0) __syncwarp();
    if (!odd || !any_extreme(args, x, h, column)) return;
    careful_windows(args, x, y, h, own, count < R ? count : R);
  }

  // The cells come from memory again, so that the usual way need not keep them.
  static DEVICE bool any_extreme(const Args& args, const T* x, I h, I column) {
    bool found = false;
    ROLLED for (int l = 0; l < LINES; ++l, x += args.row[0]) {
      Line line;
      fetch(args, x, h + l, column, line);
      UNROLL for (int i = 0; i < MAIN + HALO; ++i) {
        if (used(i)) found |= args.f.extreme(line.cell(i));
      }
    }
    return found;
  }

  // The windows of `count` rows where a value is out of the range of the fast form.
  static DEVICE void careful_windows(const Args& args, const T* x, T* y, I h, I own, I count) {
    ROLLED for (I i = 0; i < count * V; ++i) {
      const I r = i / V, v = i % V, row = h + r * SH, column = (own + v) * SW;
      if (own + v >= args.windows_w) continue;
      const I rows = row + KH < args.height ? KH : args.height - row;
      const I columns = column + KW < args.width ? KW : args.width - column;
      const T* const cell = x + r * SH * args.row[0] + v * SW;
      A one[1] = {args.f.careful(Cells<T, I>{cell, rows, columns, args.row[0], I(1)})};
      put<false>(y + r * args.row[1] + v, one);
    }
  }
};

}  // namespace baracuda
#endif
