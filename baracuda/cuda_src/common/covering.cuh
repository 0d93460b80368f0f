// Covering schedule, the transpose of the window schedule in gather form: every cell collects from
// the windows that contain it. One owner per cell, so nothing is atomic and nothing is zeroed.
//
// A functor F has `pull(dy, y, odd)` for a window and `push(x, sum, odd)` for a cell, whose
// composition is the fast form, and `term(dy, x, y, cells)`, which holds for any values.
#pragma once
#include "window.cuh"
#ifdef __CUDACC__

namespace baracuda {

// Everything a cell needs to collect its gradient window by window. Strides: dy, x, y.
template <class F, class T, class I> struct Collector {
  using A = Acc<T>;
  const T *dy, *x, *y;
  I height, width, windows_h, windows_w, kh, kw, sh, sw;
  I row[3], column[3];

  DEVICE A collect(const F& f, I h, I w) const {
    const A cell = widen(x[h * row[1] + w * column[1]]);
    const I last_h = h / sh < windows_h ? h / sh : windows_h - 1;
    const I last_w = w / sw < windows_w ? w / sw : windows_w - 1;
    A sum = 0;
    ROLLED for (I o = h < kh ? 0 : (h - kh) / sh + 1; o <= last_h; ++o) {
      ROLLED for (I p = w < kw ? 0 : (w - kw) / sw + 1; p <= last_w; ++p) {
        const Window<I> at = window_at(o, p, kh, kw, sh, sw, height, width);
        const T* first = x + at.row * row[1] + at.column * column[1];
        sum += f.term(
            widen(dy[o * row[0] + p * column[0]]), cell, widen(y[o * row[2] + p * column[2]]),
            Cells<T, I>{first, at.rows, at.columns, row[1], column[1]});
      }
    }
    return sum;
  }
};

// One thread per cell, sizes and strides at run time.
template <class F, class T, class I, bool ADD> struct CoveringAny {
  static constexpr int RESIDENT = sizeof(T) < 8 ? 4 : 2;
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;

  struct Args {
    const T *dy, *x, *y;
    T* dx;
    F f;
    I items, windows_h, windows_w, kh, kw, sh, sw, pad;
    I row[4], column[4];  // strides of dy, x, y, dx
    Extent<U> height, width;
    U pads[2];
    Walk<0, 4, I> plane;
  };

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    const U line = args.width.divide(U(item)), plane = args.height.divide(line);
    const I w = I(U(item) - line * args.width.size), h = I(line - plane * args.height.size);
    I base[4];
    args.plane.template offsets<1>(I(plane), base);
    const Collector<F, T, I> from{
        args.dy + base[0], args.x + base[1], args.y + base[2],
        I(args.height.size), I(args.width.size), args.windows_h, args.windows_w,
        args.kh, args.kw, args.sh, args.sw,
        {args.row[0], args.row[1], args.row[2]}, {args.column[0], args.column[1], args.column[2]}};
    A dx[1] = {from.collect(args.f, h, w)};
    put<ADD>(args.dx + base[3] + h * args.row[3] + w * args.column[3], dx);
  }
};

// Sizes at compile time: a thread owns V cells side by side and walks down `rows` rows of windows,
// the next ones in flight. Each window is pulled once per thread and summed along its row once. XA
// and WA are the elements per access to the arrays of cells and of windows.
template <
    class F, class T, int KH, int KW, int SH, int SW, int V, int XA, int WA, class I, bool ADD>
struct CoveringStrip {
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  // Windows over a cell, down and along; those that begin before the thread's first cell.
  static constexpr int DOWN = ceil_div(KH, SH), ALONG = ceil_div(KW, SW);
  static constexpr int LEAD = ceil_div(ALONG - 1, WA) * WA, PULLS = LEAD + V / SW;
  static constexpr int RESIDENT =
      sizeof(T) == 8 ? 1 : DOWN == 1 && ALONG == 1 && XA > 1 && V < 9 ? 3 : 2;

  struct Args {
    const T *dy, *x, *y;
    T* dx;
    F f;
    I items, height, width, windows_h, windows_w, rows;
    I plane[4], row[4];  // strides of dy, x, y, dx
    Extent<U> groups, strips;
  };

  struct Planes {
    const T *dy, *x, *y;
    T* dx;
  };

  struct Windows {
    Vec<T, PULLS> dy, y;
  };

  static DEVICE void fetch(const Args& args, const Planes& at, I o, I column, Windows& row) {
    const I end = o >= 0 && o < args.windows_h ? args.windows_w : 0;
    load_part<PULLS, WA>(at.dy + o * args.row[0], column / SW - LEAD, end, row.dy);
    load_part<PULLS, WA>(at.y + o * args.row[2], column / SW - LEAD, end, row.y);
  }

  // What a row of windows holds for each of the V cells.
  static DEVICE void pull_row(const F& f, const Windows& row, A (&sum)[V], bool& odd) {
    A g[PULLS];
    UNROLL for (int i = LEAD - (ALONG - 1); i < PULLS; ++i) {
      g[i] = f.pull(widen(row.dy, i), widen(row.y, i), odd);
    }
    UNROLL for (int c = 0; c < V; ++c) {
      sum[c] = 0;
      UNROLL for (int j = 0; j < ALONG; ++j) {
        if (c % SW + j * SW < KW) sum[c] += g[LEAD + c / SW - j];
      }
    }
  }

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    const U strip = args.groups.divide(U(item)), plane = args.strips.divide(strip);
    const I column = I(U(item) - strip * args.groups.size) * V;
    I o = I(strip - plane * args.strips.size) * args.rows, h = o * SH;
    const I end = h + args.rows * SH < args.height ? h + args.rows * SH : args.height;
    const Planes at{
        args.dy + I(plane) * args.plane[0], args.x + I(plane) * args.plane[1],
        args.y + I(plane) * args.plane[2], args.dx + I(plane) * args.plane[3]};
    A pulled[DOWN][V];  // of the last rows of windows, the newest first
    bool odd = false;
    UNROLL for (int j = 1; j < DOWN; ++j) {
      Windows before;
      fetch(args, at, o - j, column, before);
      pull_row(args.f, before, pulled[j - 1], odd);
    }
    Windows next;
    Vec<T, V> cells[SH];
    fetch(args, at, o, column, next);
    UNROLL for (int k = 0; k < SH; ++k) {
      const I stop = h + k < end ? args.width : 0;
      load_part<V, XA>(at.x + (h + k) * args.row[1], column, stop, cells[k]);
    }
    ROLLED for (; h < end; ++o, h += SH) {
      const Windows now = next;
      Vec<T, V> x[SH];
      if (h + SH < end) fetch(args, at, o + 1, column, next);
      UNROLL for (int k = 0; k < SH; ++k) {
        x[k] = cells[k];
        const I ahead = h + SH + k;
        const I stop = ahead < end ? args.width : 0;
        load_part<V, XA>(at.x + ahead * args.row[1], column, stop, cells[k]);
      }
      UNROLL for (int j = DOWN - 1; j > 0; --j) {
        UNROLL for (int c = 0; c < V; ++c) pulled[j][c] = pulled[j - 1][c];
      }
      pull_row(args.f, now, pulled[0], odd);
      A pushed[SH][V];
      UNROLL for (int k = 0; k < SH; ++k) {
        UNROLL for (int c = 0; c < V; ++c) {
          A sum = 0;
          UNROLL for (int j = 0; j < DOWN; ++j) {
            if (k + j * SH < KH) sum += pulled[j][c];
          }
          pushed[k][c] = args.f.push(widen(x[k], c), sum, odd);
        }
      }
      if (odd) break;
      UNROLL for (int k = 0; k < SH; ++k) {
        if (h + k < end) write(args, at.dx + (h + k) * args.row[3], column, pushed[k]);
      }
    }
    if (odd) careful_rows(args, at, h, end, column);
  }

  static DEVICE void write(const Args& args, T* dx, I column, A (&x)[V]) {
    Vec<T, V> packed;
    if constexpr (ADD) {
      load_part<V, XA>(static_cast<const T*>(dx), column, args.width, packed);
      UNROLL for (int c = 0; c < V; ++c) x[c] += widen(packed, c);
    }
    narrow(x, packed);
    store_part<V, XA>(dx, column, args.width, packed);
  }

  // What is left from the first value on that is out of the range of the fast form.
  static DEVICE void careful_rows(const Args& args, const Planes& at, I h, I end, I column) {
    const Collector<F, T, I> from{
        at.dy, at.x, at.y, args.height, args.width, args.windows_h, args.windows_w, KH, KW, SH, SW,
        {args.row[0], args.row[1], args.row[2]}, {1, 1, 1}};
    const I stop = column + V < args.width ? column + V : args.width;
    ROLLED for (; h < end; ++h) {
      ROLLED for (I w = column; w < stop; ++w) {
        A one[1] = {from.collect(args.f, h, w)};
        put<ADD>(at.dx + h * args.row[3] + w, one);
      }
    }
  }
};

}  // namespace baracuda
#endif
