// Window schedule: one value for every window that slides over the last axes of an array.
//
// A functor F has `lift(x)`, what a cell adds, `join(sum, cell)`, `lower(sum, odd, small)`, which
// says whether the sum is out of the range of the fast form, or so small that it may lack a cell,
// `tiny(x)`, whether it may lack this one, and `careful(cells)`, which holds for any values.
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

// Sizes at compile time: a thread owns V windows side by side in each of R rows. All the cells they
// need are in flight before the first is used; what neighbours read again comes from L1. XA and YA
// are the elements per access to x and y.
template <class F, class T, int KH, int KW, int SH, int SW, int R, int V, int XA, int YA, class I>
struct WindowTile {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr int MAIN = V * SW, HALO = greater(KW - SW, 0);
  static constexpr int HA = XA % 2 == 0 && HALO % 2 == 0 ? 2 : 1;
  static constexpr int LINES = (R - 1) * SH + KH;
  static constexpr int RESIDENT = sizeof(T) == 8 ? 1 : LINES > 4 ? 2 : 3;

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

  static DEVICE void fetch(const Args& args, const T* x, I h, I column, Line& line) {
    const I end = h < args.height ? args.width : 0;
    load_part<MAIN, XA>(x + h * args.row[0], column, end, line.main);
    if constexpr (HALO > 0) {
      load_part<HALO, HA>(x + h * args.row[0], column + MAIN, end, line.halo);
    }
  }

  // What a row of cells adds to each of the V windows.
  static DEVICE void sum_line(const F& f, const Line& line, A (&sum)[V]) {
    A cell[MAIN + HALO];
    UNROLL for (int i = 0; i < MAIN + HALO; ++i) {
      if (used(i)) cell[i] = f.lift(line.cell(i));
    }
    UNROLL for (int v = 0; v < V; ++v) {
      sum[v] = cell[v * SW];
      UNROLL for (int k = 1; k < KW; ++k) sum[v] = f.join(sum[v], cell[v * SW + k]);
    }
  }

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    const U strip = args.groups.divide(U(item)), plane = args.strips.divide(strip);
    const I column = I(U(item) - strip * args.groups.size) * V;
    const I o = I(strip - plane * args.strips.size) * R;
    const T* x = args.x + I(plane) * args.plane[0];
    T* y = args.y + I(plane) * args.plane[1];
    Line line[LINES];
    UNROLL for (int l = 0; l < LINES; ++l) {
      if (row_used(l)) fetch(args, x, o * SH + l, column * SW, line[l]);
    }
    A sum[R][V];
    bool odd = false, small = false;
    UNROLL for (int l = 0; l < LINES; ++l) {
      if (!row_used(l)) continue;
      A one[V];
      sum_line(args.f, line[l], one);
      UNROLL for (int r = 0; r < R; ++r) {
        const int k = l - r * SH;
        if (k < 0 || k >= KH) continue;
        UNROLL for (int v = 0; v < V; ++v) sum[r][v] = k ? args.f.join(sum[r][v], one[v]) : one[v];
        if (k < KH - 1 || o + r >= args.windows_h) continue;
        UNROLL for (int v = 0; v < V; ++v) sum[r][v] = args.f.lower(sum[r][v], odd, small);
        Vec<T, V> packed;
        narrow(sum[r], packed);
        store_part<V, YA>(y + (o + r) * args.row[1], column, args.windows_w, packed);
      }
    }
    if (small) odd |= any_tiny(args, x, o * SH, column * SW);
    if (odd) careful_rows(args, x, y, o, o + R < args.windows_h ? o + R : args.windows_h, column);
  }

  // A small sum is right where it is of zeros. The cells come from memory again, so that the usual
  // way need not keep them.
  static DEVICE bool any_tiny(const Args& args, const T* x, I h, I column) {
    bool odd = false;
    ROLLED for (int l = 0; l < LINES; ++l) {
      Line line;
      fetch(args, x, h + l, column, line);
      UNROLL for (int i = 0; i < MAIN + HALO; ++i) {
        if (used(i)) odd |= args.f.tiny(line.cell(i));
      }
    }
    return odd;
  }

  // The same where a value is out of the range of the fast form.
  static DEVICE void careful_rows(const Args& args, const T* x, T* y, I o, I end, I column) {
    const I stop = column + V < args.windows_w ? column + V : args.windows_w;
    ROLLED for (; o < end; ++o) {
      ROLLED for (I p = column; p < stop; ++p) {
        const Window<I> w = window_at<I>(o, p, KH, KW, SH, SW, args.height, args.width);
        const T* cell = x + w.row * args.row[0] + w.column;
        A one[1] = {args.f.careful(Cells<T, I>{cell, w.rows, w.columns, args.row[0], I(1)})};
        put<false>(y + o * args.row[1] + p, one);
      }
    }
  }
};

}  // namespace baracuda
#endif
