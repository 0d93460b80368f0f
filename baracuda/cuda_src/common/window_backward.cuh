// The transpose of the window schedule in gather form: every cell collects from
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

// For a term that does not look at the other cells of the window.
struct NoCells {
  template <class Visit> DEVICE void each(Visit) const {}
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
  static constexpr int FIRST = LEAD - (ALONG - 1);
  // More blocks at once where that costs no spill: what is in flight is what limits these.
  static constexpr bool ALONE = DOWN == 1 && ALONG == 1 && XA > 1 && V < 9;
  static constexpr bool SHARING =
      XA > 1 && V < 9 && DOWN > 1 && KH * KW < 10 && sizeof(I) == 4 && !ADD;
  static constexpr int RESIDENT =
      sizeof(T) == 8 ? 1 : SHARING && sizeof(T) == 4 ? 4 : ALONE || SHARING ? 3 : 2;
  // Rows of windows, beside the next one, that are on their way to L2. On an H200 k3 s2 in bf16
  // goes from 0.87 to 0.90 of the copy ceiling and k3 s1 p3 from 0.81 to 0.86; k2 s2 falls from
  // 0.96 to 0.87.
  static constexpr int AHEAD = DOWN > 1 && sizeof(T) == 2 ? 2 : 0;

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

  // The first elements that a thread reads and writes of a plane, from row o of windows on.
  static DEVICE Planes begin_at(const Args& args, I plane, I o, I column) {
    const I window = column / SW - LEAD;
    return {
        args.dy + plane * args.plane[0] + o * args.row[0] + window,
        args.x + plane * args.plane[1] + o * SH * args.row[1] + column,
        args.y + plane * args.plane[2] + o * args.row[2] + window,
        args.dx + plane * args.plane[3] + o * SH * args.row[3] + column};
  }

  // Row o of windows, at the elements given.
  static DEVICE void fetch(const Args& args, const T* dy, const T* y, I o, I column, Windows& row) {
    const I end = U(o) < U(args.windows_h) ? args.windows_w : 0, window = column / SW - LEAD;
    load_part<PULLS, WA>(dy, window, end, row.dy);
    load_part<PULLS, WA>(y, window, end, row.y);
  }

  // What a row of windows holds for each of the V cells.
  static DEVICE void pull_row(const F& f, const Windows& row, A (&sum)[V], bool& odd) {
    A g[PULLS];
    UNROLL for (int i = FIRST; i < PULLS; ++i) {
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
    const I first = I(strip - plane * args.strips.size) * args.rows;
    const I begin = first * SH, past = begin + args.rows * SH;
    const I end = past < args.height ? past : args.height;
    I o = first - DOWN + 1, h = o * SH;
    Planes at = begin_at(args, I(plane), o, column);
    A pulled[DOWN][V];  // of the last rows of windows, the newest first
    bool odd = false;
    Windows next;
    Vec<T, V> cells[SH];
    fetch(args, at.dy, at.y, o, column, next);
    fetch_cells(args, at.x, h, begin, end, column, cells);
    // Rows of windows from above the strip only leave what they send down.
    ROLLED for (; h < end; ++o, h += SH) {
      const Windows now = next;
      Vec<T, V> x[SH];
      UNROLL for (int k = 0; k < SH; ++k) x[k] = cells[k];
      at.dy += args.row[0];
      at.y += args.row[2];
      at.x += SH * args.row[1];
      if (h + SH < end) fetch(args, at.dy, at.y, o + 1, column, next);
      fetch_cells(args, at.x, h + SH, begin, end, column, cells);
      if (AHEAD) request(args, at, o + AHEAD, h + AHEAD * SH, begin, end, column);
      UNROLL for (int j = DOWN - 1; j > 0; --j) {
        UNROLL for (int c = 0; c < V; ++c) pulled[j][c] = pulled[j - 1][c];
      }
      pull_row(args.f, now, pulled[0], odd);
      if (h >= begin) {
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
          if (h + k < end) write(args, at.dx + k * args.row[3], column, pushed[k]);
        }
      }
      at.dx += SH * args.row[3];
    }
    if (odd) careful_rows(args, I(plane), h < begin ? begin : h, end, column);
  }

  // Further rows, while `at` is one ahead, on their way to L2: registers would not hold them.
  static DEVICE void request(
      const Args& args, const Planes& at, I o, I h, I begin, I end, I column) {
    if (U(o) < U(args.windows_h) && h < end && column / SW < args.windows_w) {
      prefetch(at.dy + (AHEAD - 1) * args.row[0] + LEAD);
      prefetch(at.y + (AHEAD - 1) * args.row[2] + LEAD);
    }
    UNROLL for (int k = 0; k < SH; ++k) {
      if (h >= begin && h + k < end) prefetch(at.x + ((AHEAD - 1) * SH + k) * args.row[1]);
    }
  }

  // The rows of cells from h on, of those between `begin` and `end`.
  static DEVICE void fetch_cells(
      const Args& args, const T* x, I h, I begin, I end, I column, Vec<T, V> (&cells)[SH]) {
    UNROLL for (int k = 0; k < SH; ++k) {
      const I stop = h >= begin && h + k < end ? args.width : 0;
      load_part<V, XA>(x + k * args.row[1], column, stop, cells[k]);
    }
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

  // What is left from the first value on that is out of the range of the fast form. One loop over
  // cells and one over windows compile faster than two each.
  static DEVICE void careful_rows(const Args& args, I plane, I h, I end, I column) {
    const T* const dy = args.dy + plane * args.plane[0];
    const T* const x = args.x + plane * args.plane[1];
    const T* const y = args.y + plane * args.plane[2];
    ROLLED for (I i = 0; i < (end - h) * V; ++i) {
      const I row = h + i / V, w = column + i % V;
      if (w >= args.width) continue;
      const A cell = widen(x[row * args.row[1] + w]);
      A sum[1] = {0};
      ROLLED for (int j = DOWN * ALONG - 1; j >= 0; --j) {
        const I o = row / SH - j / ALONG, p = w / SW - j % ALONG;
        if (U(o) >= U(args.windows_h) || row - o * SH >= KH) continue;
        if (U(p) >= U(args.windows_w) || w - p * SW >= KW) continue;
        const A dy_here = widen(dy[o * args.row[0] + p]), y_here = widen(y[o * args.row[2] + p]);
        sum[0] += args.f.term(dy_here, cell, y_here, NoCells{});
      }
      put<ADD>(args.dx + plane * args.plane[3] + row * args.row[3] + w, sum);
    }
  }
};

// The same for the largest cell of each window, where what a window sends depends on how many cells
// hold it: F has `holds(x, y)`, what each of them gets, `share(dy, y, ties)`, what the others get,
// `rest(y)`, and `turn(x, sum)`, which gives the sum of a cell its sign. A thread reads the cells
// of all windows over its own, R rows of windows at once.
template <
    class F, class T, int KH, int KW, int SH, int SW, int R, int V, int XA, int WA, class I,
    bool ADD>
struct CoveringMost : CoveringStrip<F, T, KH, KW, SH, SW, V, XA, WA, I, ADD> {
  using Strip = CoveringStrip<F, T, KH, KW, SH, SW, V, XA, WA, I, ADD>;
  using A = Acc<T>;
  using U = typename Unsigned<I>::type;
  using Args = typename Strip::Args;
  using Windows = typename Strip::Windows;
  static constexpr int DOWN = Strip::DOWN, ALONG = Strip::ALONG, LEAD = Strip::LEAD;
  static constexpr int FIRST = Strip::FIRST, PULLS = Strip::PULLS, LINES = R + DOWN - 1;
  // As many as leave room for the cells.
  static constexpr bool FEW = DOWN * ALONG < 5;
  static constexpr int RESIDENT =
      sizeof(T) == 4 && FEW && XA > 1 && V < 9 ? 3 : sizeof(T) < 8 && XA > 1 ? 2 : 1;
  // Rows and columns of cells, from those before the thread's own on.
  static constexpr int ROWS = (LINES - 1) * SH + KH, ABOVE = (DOWN - 1) * SH;
  static constexpr int LEFT = (ALONG - 1) * SW, RIGHT = greater(KW - SW, 0);
  static constexpr int LA = XA % 2 == 0 && LEFT % 2 == 0 ? 2 : 1;
  static constexpr int RA = XA % 2 == 0 && RIGHT % 2 == 0 ? 2 : 1;

  struct Line {
    Vec<T, greater(LEFT, 1)> left;
    Vec<T, V> main;
    Vec<T, greater(RIGHT, 1)> right;

    DEVICE A cell(int i) const {
      if (i < LEFT) return widen(left, i);
      return i < LEFT + V ? widen(main, i - LEFT) : widen(right, i - LEFT - V);
    }
  };

  static DEVICE void fetch_line(const Args& args, const T* x, I h, I column, Line& line) {
    const I end = U(h) < U(args.height) ? args.width : 0;
    if constexpr (LEFT > 0) load_part<LEFT, LA>(x - LEFT, column - LEFT, end, line.left);
    load_part<V, XA>(x, column, end, line.main);
    if constexpr (RIGHT > 0) load_part<RIGHT, RA>(x + V, column + V, end, line.right);
  }

  static DEVICE void run(const Args& args) {
    const I item = I(blockIdx.x) * I(blockDim.x) + I(threadIdx.x);
    if (item >= args.items) return;
    const U strip = args.groups.divide(U(item)), plane = args.strips.divide(strip);
    const I column = I(U(item) - strip * args.groups.size) * V;
    const I o = I(strip - plane * args.strips.size) * R, h = o * SH;
    const typename Strip::Planes at = Strip::begin_at(args, I(plane), o, column);
    Windows windows[LINES];
    Line line[ROWS];
    UNROLL for (int j = 0; j < LINES; ++j) {
      const I before = j - (DOWN - 1);
      Strip::fetch(
          args, at.dy + before * args.row[0], at.y + before * args.row[2], o + before, column,
          windows[j]);
    }
    UNROLL for (int l = 0; l < ROWS; ++l) {
      fetch_line(args, at.x + (l - ABOVE) * args.row[1], h - ABOVE + l, column, line[l]);
    }
    A dx[R * SH][V];
    UNROLL for (int l = 0; l < R * SH; ++l) {
      UNROLL for (int c = 0; c < V; ++c) dx[l][c] = 0;
    }
    UNROLL for (int j = 0; j < LINES; ++j) {
      UNROLL for (int i = FIRST; i < PULLS; ++i) {
        const A y = widen(windows[j].y, i);
        const int left = (i - FIRST) * SW;
        A ties = 0;
        UNROLL for (int k = 0; k < KH; ++k) {
          UNROLL for (int c = 0; c < KW; ++c) {
            ties += args.f.holds(line[j * SH + k].cell(left + c), y) ? A(1) : A(0);
          }
        }
        const A share = args.f.share(widen(windows[j].dy, i), y, ties), rest = args.f.rest(y);
        UNROLL for (int k = 0; k < KH; ++k) {
          UNROLL for (int c = 0; c < KW; ++c) {
            const int row = j * SH + k - ABOVE, own = left + c - LEFT;
            if (row < 0 || row >= R * SH || own < 0 || own >= V) continue;
            dx[row][own] += args.f.holds(line[j * SH + k].cell(left + c), y) ? share : rest;
          }
        }
      }
    }
    UNROLL for (int l = 0; l < R * SH; ++l) {
      UNROLL for (int c = 0; c < V; ++c) {
        dx[l][c] = args.f.turn(line[ABOVE + l].cell(LEFT + c), dx[l][c]);
      }
      if (h + l < args.height) Strip::write(args, at.dx + l * args.row[3], column, dx[l]);
    }
  }
};

}  // namespace baracuda
#endif
