// Window schedule: one value for every window that slides over the last axes of an array.
//
// A functor F has `lift(x, odd)`, what a cell adds and whether it leaves the range of the fast
// form, `join(sum, cell)`, `lower(sum, odd)`, and `careful(cells)`, which holds for any values.
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

// Sizes at compile time: a thread owns V windows side by side and walks down `rows` of them, so
// that a cell is lifted once and a row shared by windows is summed once, the next rows in flight.
// XA and YA are the elements per access to x and y.
template <class F, class T, int KH, int KW, int SH, int SW, int V, int XA, int YA, class I>
struct WindowStrip {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  static constexpr int MAIN = V * SW, HALO = greater(KW - SW, 0);
  static constexpr int FRESH = lesser(KH, SH), KEPT = KH - FRESH;
  static constexpr int RESIDENT = XA > 1 && MAIN < 9 && sizeof(T) < 8 ? 3 : 2;

  struct Args {
    const T* x;
    T* y;
    F f;
    I items, height, width, windows_h, windows_w, rows;
    I plane[2], row[2];  // strides of x and y
    Extent<U> groups, strips;
  };

  struct Line {
    Vec<T, MAIN> main;
    Vec<T, HALO + 1> halo;
  };

  static DEVICE void fetch(const Args& args, const T* x, I h, I column, Line& line) {
    const I end = h < args.height ? args.width : 0;
    load_part<MAIN, XA>(x + h * args.row[0], column, end, line.main);
    load_part<HALO + 1, 1>(x + h * args.row[0], column + MAIN, HALO ? end : 0, line.halo);
  }

  // What a row of cells adds to each of the V windows.
  static DEVICE void sum_line(const F& f, const Line& line, A (&sum)[V], bool& odd) {
    A cell[MAIN + HALO];
    UNROLL for (int i = 0; i < MAIN + HALO; ++i) {
      if (i % SW >= KW) continue;
      cell[i] = f.lift(i < MAIN ? widen(line.main, i) : widen(line.halo, i - MAIN), odd);
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
    I o = I(strip - plane * args.strips.size) * args.rows;
    const I end = o + args.rows < args.windows_h ? o + args.rows : args.windows_h;
    const T* x = args.x + I(plane) * args.plane[0];
    T* y = args.y + I(plane) * args.plane[1];
    Line next[FRESH];
    A kept[KEPT + 1][V];
    bool odd = false;
    UNROLL for (int k = 0; k < KEPT; ++k) {
      Line line;
      fetch(args, x, o * SH + k, column * SW, line);
      sum_line(args.f, line, kept[k], odd);
    }
    UNROLL for (int k = 0; k < FRESH; ++k) fetch(args, x, o * SH + KEPT + k, column * SW, next[k]);
    ROLLED for (; o < end; ++o) {
      Line now[FRESH];
      UNROLL for (int k = 0; k < FRESH; ++k) {
        now[k] = next[k];
        if (o + 1 < end) fetch(args, x, (o + 1) * SH + KEPT + k, column * SW, next[k]);
      }
      A line[KH][V], sum[V];
      UNROLL for (int k = 0; k < KH; ++k) {
        if (k < KEPT) {
          UNROLL for (int v = 0; v < V; ++v) line[k][v] = kept[k][v];
        } else {
          sum_line(args.f, now[k - KEPT], line[k], odd);
        }
        UNROLL for (int v = 0; v < V; ++v) {
          sum[v] = k == 0 ? line[k][v] : args.f.join(sum[v], line[k][v]);
          if (k >= FRESH) kept[k - FRESH][v] = line[k][v];
        }
      }
      UNROLL for (int v = 0; v < V; ++v) sum[v] = args.f.lower(sum[v], odd);
      if (odd) break;
      Vec<T, V> packed;
      narrow(sum, packed);
      store_part<V, YA>(y + o * args.row[1], column, args.windows_w, packed);
    }
    if (odd) careful_rows(args, x, y, o, end, column);
  }

  // What is left from the first value on that is out of the range of the fast form.
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
