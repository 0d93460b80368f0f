// Run-time values that lie on the device. In the place of such a value among the arguments of a
// kernel stands its address. Only kernels that are asked for such values include this.
#ifdef __CUDACC__

namespace baracuda {

// Of a value that is a number.
struct ByValue {};

// A value in an array of K, as a kernel takes it: 8 bytes wide.
template <class K> struct Taken { using type = i64; };
template <> struct Taken<f32> { using type = f64; };
template <> struct Taken<f64> { using type = f64; };
template <class K> DEVICE void put_value(const char* from, char* to) {
  using V = typename Taken<K>::type;
  *reinterpret_cast<V*>(to) = V(**reinterpret_cast<const K* const*>(from));
}
template <> DEVICE void put_value<ByValue>(const char* from, char* to) {
  *reinterpret_cast<u64*>(to) = *reinterpret_cast<const u64*>(from);
}

// Schedule S on arguments of which the values, of KINDS, begin at byte FIRST.
template <class S, int FIRST, class... KINDS> struct Reading {
  using Args = typename S::Args;
  static constexpr int RESIDENT = S::RESIDENT;
  static constexpr int SIZE = int(sizeof(Args)), BEHIND = FIRST + 8 * int(sizeof...(KINDS));
  // Threads index into more than that: it is copied once for a block, not for each thread.
  static constexpr int SMALL = 160;
  static_assert(SIZE <= 1280 && SIZE % 8 == 0, "the host leaves no room for more");

  static DEVICE void put_values(const Args& args, Args& own) {
    int at = FIRST;
    const auto next = [&] { return (at += 8) - 8; };
    (put_at<KINDS>(args, own, next()), ...);
  }
  template <class K> static DEVICE void put_at(const Args& args, Args& own, int at) {
    put_value<K>(reinterpret_cast<const char*>(&args) + at, reinterpret_cast<char*>(&own) + at);
  }

  static DEVICE void run(const Args& args) {
    if constexpr (SIZE <= SMALL) {
      Args own = args;
      put_values(args, own);
      S::run(own);
    } else {
      __shared__ Args own;
      const u64* const from = reinterpret_cast<const u64*>(&args);
      u64* const to = reinterpret_cast<u64*>(&own);
      for (int i = threadIdx.x; i < SIZE / 8; i += blockDim.x) {
        if (i < FIRST / 8 || i >= BEHIND / 8) to[i] = from[i];
      }
      if (threadIdx.x == 0) put_values(args, own);
      __syncthreads();
      S::run(own);
    }
  }
};

}  // namespace baracuda
#endif
