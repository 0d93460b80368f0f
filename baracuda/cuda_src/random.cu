// Random masks and numbers. A word of 32 bits decides on an element, and nothing is kept of it.
#include "common/elementwise.cuh"
#include "common/philox.cuh"

namespace baracuda {

// Where a word is below p * 2^32, rounded down, nothing is left, whatever was there.
template <class A> struct Dropout : Mask {
  static constexpr int inputs = 1, outputs = 1;

  struct Ready : Stream {
    Cutoff stays;
    A factor;

    HD A left(A x, u32 word) const { return stays(word) ? x * factor : A(0); }
    HD void operator()(const A (&x)[1], A (&y)[1], u32 word) const { y[0] = left(x[0], word); }
  };
  HD Ready ready() const { return {*this, cutoff(), rise<A>()}; }
};

template <class A> struct DropoutAdd : Dropout<A> {
  static constexpr int inputs = 2;

  struct Ready : Dropout<A>::Ready {
    HD void operator()(const A (&x)[2], A (&y)[1], u32 word) const {
      y[0] = x[1] + this->left(x[0], word);
    }
  };
  HD Ready ready() const { return {Dropout<A>::ready()}; }
};

// Whole examples, or the whole array.
template <class A> struct StochasticDepth : Shared<Dropout<A>> {};
template <class A> using StochasticDepthRow = StochasticDepth<A>;
template <class A> using StochasticDepthBatch = StochasticDepth<A>;

// What is `blind` reads nothing of its input, which says of what shape the result is.
template <class A> struct Bernoulli : Mask {
  static constexpr int inputs = 1, outputs = 1;
  static constexpr bool blind = true;

  struct Ready : Stream {
    Cutoff stays;

    HD void operator()(const A (&)[1], A (&y)[1], u32 word) const {
      y[0] = stays(word) ? A(0) : A(1);
    }
  };
  HD Ready ready() const { return {*this, cutoff()}; }
};

template <class A> struct Uniform : WholeWords {
  static constexpr int inputs = 1, outputs = 1;
  static constexpr bool blind = true;
  f64 low, high;

  HD void operator()(const A (&)[1], A (&y)[1], u32 word) const {
    const A unit = A(word >> 8) * A(1.0 / (1 << 24));
    y[0] = A(low) + A(high - low) * unit;
  }
};

// The quantile by Wichura's AS 241, PPND7; `families/philox.py` has the formula in words. No word
// is so near an end that its third range is reached.
template <class A> struct Normal : WholeWords {
  static constexpr int inputs = 1, outputs = 1;
  static constexpr bool blind = true;
  f64 mean, std;

  HD void operator()(const A (&)[1], A (&y)[1], u32 word) const {
    const bool above = word >> 31;
    const u32 end = above ? ~word : word;
    const A unit = A(1.0 / 4294967296.0);
    const A q = (A(0x7FFFFFFFu - end) + A(0.5)) * unit, p = (A(end) + A(0.5)) * unit;
    A z;
    if (q <= A(0.425)) {
      const A x = A(0.180625) - q * q;
      const A above0 = ((A(59.109374720) * x + A(159.29113202)) * x + A(50.434271938)) * x;
      const A below0 = ((A(67.187563600) * x + A(78.757757664)) * x + A(17.895169469)) * x;
      z = q * ((above0 + A(3.3871327179)) * reciprocal(below0 + A(1)));
    } else {
      const A x = root2(logarithm2(p) * A(-0.69314718055994531)) - A(1.6);
      const A over = ((A(0.17023821103) * x + A(1.3067284816)) * x + A(2.7568153900)) * x;
      const A under = (A(0.12021132975) * x + A(0.73700164250)) * x;
      z = (over + A(1.4234372777)) * reciprocal(under + A(1));
    }
    y[0] = A(mean) + A(std) * (above ? z : -z);
  }
};

}  // namespace baracuda
