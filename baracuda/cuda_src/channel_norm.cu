// Norms of channels: what becomes of the statistics of a set of planes, and of each element.
// Sets that fit the registers of a block are rows, for which `LayerNorm` is there.
#include "common/kept_planes.cuh"
#include "common/planes.cuh"
#include "norm.cu"

namespace baracuda {

// By statistics of x itself.
template <class A> struct Normalised {
  static constexpr int inputs = 1, reads = 1, sums = 3;
  static constexpr bool given = false;
  f64 eps;

  HD Coefficients<A> settle(const Statistics<A>& of, const Channel<A>& channel) const {
    const A scale = of.inverse * channel.weight;
    return {of.mean, A(0), scale, fused(-of.shift, scale, channel.bias)};
  }
  static HD A finish(const A (&x)[1], const Coefficients<A>& c) {
    return fused(x[0] - c.centre, c.along, c.offset);
  }
};

// Inputs are dy and x.
template <class A> struct NormalisedBackward {
  static constexpr int inputs = 2, reads = 2, sums = 5;
  static constexpr bool given = false;
  f64 eps;

  HD Coefficients<A> settle(const Statistics<A>& of, const Channel<A>& channel) const {
    // A single element is its own mean; a product and its rounding would not cancel. What is no
    // number comes through.
    if (of.count == 1) return {of.mean, 0 * channel.weight, 0 * channel.dvar, channel.dmean};
    const A along = 2 * channel.dvar / of.count - of.along * of.inverse * of.inverse;
    const A offset = channel.dmean / of.count - of.pull * of.inverse;
    return {of.mean, of.inverse * channel.weight, along, fused(-of.shift, along, offset)};
  }
  static HD A finish(const A (&x)[2], const Coefficients<A>& c) {
    return fused(c.slope, x[0], fused(x[1] - c.centre, c.along, c.offset));
  }
};

// By statistics that are given.
template <class A> struct Known : Normalised<A> {
  static constexpr bool given = true;
};

template <class A> struct KnownBackward {
  static constexpr int inputs = 2, reads = 1, sums = 5;
  static constexpr bool given = true;
  f64 eps;

  HD Coefficients<A> settle(const Statistics<A>& of, const Channel<A>& channel) const {
    return {of.mean, of.inverse * channel.weight, A(0), A(0)};
  }
  static HD A finish(const A (&x)[1], const Coefficients<A>& c) { return c.slope * x[0]; }
};

}  // namespace baracuda
