// The functors as a host compiler sees them: a C function for each, in both accumulate types.
//
// Of elementwise ops a test puts them together from the registry: their files are included, and a
// line `FUNCTOR(name, scalars...)` for each stands in ELEMENTWISE.
#include "pooling.cu"
#include "rope.cu"

using namespace baracuda;

// x is [inputs][n], y is [outputs][n].
template <class F, class A, class G> static void apply(const G& f, const A* x, A* y, i64 n) {
  for (i64 i = 0; i < n; ++i) {
    A from[F::inputs], to[F::outputs];
    for (int k = 0; k < F::inputs; ++k) from[k] = x[k * n + i];
    f(from, to);
    for (int k = 0; k < F::outputs; ++k) y[k * n + i] = to[k];
  }
}

#define FUNCTOR_AS(name, A, ...)                                         \
  extern "C" void name##_##A(const A* x, A* y, i64 n, const f64* more) { \
    (void)more;                                                          \
    apply<name<A>>(readied(name<A>{__VA_ARGS__}, 0), x, y, n);           \
  }
// As elements of 16 bits are computed, before they are rounded to these.
#define FUNCTOR_QUICK(name, ...)                                                                \
  extern "C" void name##_quick(const f32* x, f32* y, i64 n, const f64* more) {                  \
    (void)more;                                                                                 \
    const auto f = readied(name<f32>{__VA_ARGS__}, 0);                                          \
    const auto quick = [&f](const auto& from, auto& to) { evaluate<bf16>(f, from, to); };       \
    apply<name<f32>>(quick, x, y, n);                                                           \
  }
#define FUNCTOR(name, ...)                                              \
  FUNCTOR_AS(name, f32, __VA_ARGS__) FUNCTOR_AS(name, f64, __VA_ARGS__) \
  FUNCTOR_QUICK(name, __VA_ARGS__)
ELEMENTWISE

template <class A> static void circle(const i64* phase, A* y, i64 n) {
  for (i64 i = 0; i < n; ++i) {
    const Pair<A> p = cos_sin<A>(phase[i]);
    y[i] = p.first;
    y[n + i] = p.second;
  }
}
extern "C" void circle_f32(const i64* phase, f32* y, i64 n) { circle(phase, y, n); }
extern "C" void circle_f64(const i64* phase, f64* y, i64 n) { circle(phase, y, n); }

// x is a, b, cos, sin.
template <class F, class A> static void turn(const A* x, A* y, i64 n) {
  for (i64 i = 0; i < n; ++i) {
    F::apply(x[i], x[n + i], Pair<A>{x[2 * n + i], x[3 * n + i]}, y[i], y[n + i]);
  }
}
#define TURN_AS(name, A)                                            \
  extern "C" void name##_##A(const A* x, A* y, i64 n, const f64*) { \
    turn<name>(x, y, n);                                            \
  }
#define TURN(name) TURN_AS(name, f32) TURN_AS(name, f64)
TURN(Rope) TURN(RopeBackward)

template <class A> struct List {
  const A* cell;
  i64 n;
  template <class Visit> void each(Visit visit) const {
    for (i64 i = 0; i < n; ++i) visit(cell[i]);
  }
};

extern "C" void power_f32(const f32* x, f32* y, i64 n, const f64* p) {
  for (i64 i = 0; i < n; ++i) y[i] = power(x[i], f32(p[0]), f32(p[0] - f32(p[0])));
}

// One window of n = CELLS cells: the fast form, whether it gives up, the careful form.
static constexpr int CELLS = 6;
template <class A, int P, bool COARSE> static void pool(const A* norm, const A* x, A* y, i64 n) {
  const LpPool<A, P, COARSE> f{{norm[0], norm[1], norm[2], norm[3]}, norm[4], norm[5], norm[6]};
  bool odd = false, extreme = false;
  A cells[CELLS];
  for (i64 i = 0; i < CELLS; ++i) cells[i] = f.INLINED ? f.lift(x[i]) : x[i];
  if constexpr (!LpPool<A, P, COARSE>::INLINED) f.lift(cells);
  A sum = cells[0];
  for (i64 i = 1; i < CELLS; ++i) sum = f.join(sum, cells[i]);
  y[0] = f.lower(sum, odd);
  for (i64 i = 0; i < n; ++i) extreme |= f.extreme(x[i]);
  y[1] = odd && extreme;
  y[2] = f.careful(List<A>{x, n});
}

// The same of the gradient of each cell: d is [3][n].
template <class A, int P, bool COARSE>
static void pool_backward(const A* norm, const A* x, A dy, A y, A* d, i64 n) {
  const LpPoolBackward<A, P, COARSE> f{{norm[0], norm[1], norm[2], norm[3]}};
  bool odd = false;
  A ties = 0;
  for (i64 i = 0; i < n; ++i) ties += A(f.holds(x[i], y));
  const A pulled = P == INFINITE ? f.share(dy, y, ties) : f.pull(dy, y, odd);
  for (i64 i = 0; i < n; ++i) {
    bool here = P != INFINITE && odd;
    const A got = P == INFINITE && !f.holds(x[i], y) ? f.rest(y) : pulled;
    d[i] = P == INFINITE ? f.turn(x[i], got) : f.push(x[i], pulled, here);
    d[n + i] = here;
    d[2 * n + i] = f.term(dy, x[i], y, List<A>{x, n});
  }
}

#define POOL_AS(P, COARSE, name, A)                                                    \
  extern "C" void LpPool_##name##_##A(const A* norm, const A* x, A* y, i64 n) {        \
    pool<A, P, COARSE>(norm, x, y, n);                                                 \
  }                                                                                    \
  extern "C" void LpPoolBackward_##name##_##A(                                         \
      const A* norm, const A* x, A dy, A y, A* d, i64 n) {                             \
    pool_backward<A, P, COARSE>(norm, x, dy, y, d, n);                                 \
  }
#define POOL(P, name)                                            \
  POOL_AS(P, false, name, f32) POOL_AS(P, false, name, f64)      \
  POOL_AS(P, true, name##_COARSE, f32)
POOL(1, 1) POOL(2, 2) POOL(3, 3) POOL(4, 4) POOL(REAL, REAL) POOL(INFINITE, INFINITE)
