// A CUDA block on one host thread: every thread of it is a fiber that runs until it has to wait.
//
// Fibers take turns in an order that a seed shuffles, so that what depends on the order of threads
// differs from seed to seed. A round in which nobody gets on is a deadlock.
#ifndef EMULATOR_HPP
#define EMULATOR_HPP
#define __CUDACC__ 1
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__

struct Dim {
  unsigned x, y, z;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

// The odd lines keep the stacks of a block from falling into one set of a cache.
constexpr size_t STACK = (64 << 10) + 5 * 64, FIXED = 16384, PAGE = 4096;

// What lanes hand each other: those of a mask meet, and all see what each has brought.
struct Meeting {
  unsigned arrived = 0, left = 0;
  uint64_t brought[32], seen[32];
};

struct Warp {
  Meeting whole;  // that of all lanes, which is the usual one
  std::map<unsigned, Meeting> some;
};

// Shared memory of a block: what lies behind it can neither be read nor written.
struct Room {
  size_t pages;
  char *begin, *shared;

  explicit Room(size_t bytes) : pages((bytes + PAGE - 1) / PAGE * PAGE) {
    begin = static_cast<char*>(mmap(
        nullptr, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (begin == MAP_FAILED || mprotect(begin + pages, PAGE, PROT_NONE)) std::abort();
    shared = begin + (pages - bytes) / 16 * 16;
  }
  Room(const Room&) = delete;
  ~Room() { munmap(begin, pages + PAGE); }
};

struct Block {
  char* shared = nullptr;
  std::vector<char> fixed;
  std::vector<Warp> warps;
  unsigned alive = 0, waiting = 0, rounds = 0;
  Dim index;
};

// A word that others write, and when who waits for it may go on. The scheduler looks at it, so that
// nobody is woken for nothing.
struct Word {
  const unsigned* at = nullptr;
  unsigned mask = 0, value = 0;
  bool equal = false;

  bool ready() const { return ((*at & mask) == value) == equal; }
};

struct Fiber {
  ucontext_t context;  // where it starts
  jmp_buf place;       // where it goes on: a jump, unlike a context, costs no system call
  Word word;           // what it waits for; without an address it looks itself
  Block* block;
  unsigned number, phase = 0;
  bool started = false, done = false;
};

static std::vector<Block> blocks;
static std::vector<Fiber> fibers;
static std::vector<std::unique_ptr<Room>> rooms;
// Memory that is never filled, so that only what is used of a stack takes room.
static std::unique_ptr<char[]> stacks;
static size_t stacked;
static jmp_buf scheduler;
static Fiber* self;
static bool moved;
static unsigned cluster_arrived, cluster_rounds, threads, shared_bytes, running;
static std::function<void()> kernel;

inline unsigned lane() { return self->number % 32; }
inline void wait() {
  if (_setjmp(self->place) == 0) _longjmp(scheduler, 1);
}
// Apart, so that no variable lives across the jump.
__attribute__((noinline)) static void go_on() {
  if (_setjmp(scheduler)) return;
  if (self->started) _longjmp(self->place, 1);
  self->started = true;
  setcontext(&self->context);
}
template <class F> void wait_until(F ready) {
  while (!ready()) wait();
  moved = true;
}
inline void wait_for(Word word) {
  if (!word.ready()) {
    self->word = word;
    wait();
    self->word.at = nullptr;
  }
  moved = true;
}

inline void barrier() {
  Block& b = *self->block;
  const unsigned round = b.rounds;
  moved = true;
  if (++b.waiting == b.alive) b.waiting = 0, ++b.rounds;
  wait_for({&b.rounds, ~0u, round, false});
}
inline void cluster_arrive() {
  self->phase = cluster_rounds;
  moved = true;
  if (++cluster_arrived == running) cluster_arrived = 0, ++cluster_rounds;
}
inline void cluster_wait() {
  wait_for({&cluster_rounds, ~0u, self->phase, false});
}

// What every lane of `mask` brings, lanes that are not in it 0; until the caller waits again.
inline const uint64_t* meet(unsigned mask, uint64_t x) {
  Warp& warp = self->block->warps[self->number / 32];
  Meeting& m = mask == ~0u ? warp.whole : warp.some[mask];
  const unsigned bit = 1u << lane();
  if (!(mask & bit)) std::fprintf(stderr, "a lane outside of its mask\n"), std::abort();
  wait_until([&] { return m.left == 0 && !(m.arrived & bit); });
  m.brought[lane()] = x;
  m.arrived |= bit;
  if (m.arrived == mask) {
    for (int i = 0; i < 32; ++i) m.seen[i] = mask >> i & 1 ? m.brought[i] : 0;
    m.arrived = 0, m.left = mask;
  }
  wait_for({&m.left, bit, bit, true});
  m.left &= ~bit;
  return m.seen;
}

template <class T> T* shared() { return reinterpret_cast<T*>(self->block->shared); }
template <class T> T* fixed() { return reinterpret_cast<T*>(self->block->fixed.data()); }
template <class T> T* copied() {
  return reinterpret_cast<T*>(self->block->fixed.data() + FIXED - 1024);
}
template <class T> T* of_block(T* p, unsigned rank) {
  Block &mine = *self->block, &there = blocks[rank];
  char* at = reinterpret_cast<char*>(p);
  const ptrdiff_t place = at - mine.fixed.data();
  if (place >= 0 && place < FIXED) return reinterpret_cast<T*>(there.fixed.data() + place);
  return reinterpret_cast<T*>(there.shared + (at - mine.shared));
}

// Copies in bulk that are on their way, by the barrier that will know of them.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
};
struct Coming {
  unsigned expected = 0;
  std::vector<Copy> copies;
};
static std::map<const void*, Coming> coming;

// Started once, a fiber is a thread of one block after the other: starting costs system calls.
inline void body() {
  for (;; wait()) {
    kernel();
    self->done = true;
    moved = true;
    Block& b = *self->block;
    // Who has left is not waited for.
    if (--b.alive && b.waiting == b.alive) b.waiting = 0, ++b.rounds;
  }
}

// Run the blocks of a cluster to their end.
inline void run_cluster(unsigned first, unsigned row, unsigned size, std::mt19937& random) {
  blocks.assign(size, Block());
  running = size * threads;
  if (stacked < running) {
    stacks.reset(new char[(stacked = running) * STACK]);
    fibers.assign(stacked, Fiber());
  }
  cluster_arrived = cluster_rounds = 0;
  coming.clear();
  std::vector<unsigned> order(running);
  for (unsigned b = 0; b < size; ++b) {
    // Nothing is known of what shared memory holds.
    blocks[b].shared = rooms[b]->shared;
    std::memset(blocks[b].shared, 0xcd, shared_bytes);
    blocks[b].fixed.assign(FIXED, char(0xcd));
    blocks[b].warps.resize((threads + 31) / 32);
    blocks[b].alive = threads;
    blocks[b].index = {first + b, row, 0};
  }
  for (unsigned i = 0; i < running; ++i) {
    Fiber& f = fibers[order[i] = i];
    f.block = &blocks[i / threads];
    f.number = i % threads;
    f.phase = 0;
    f.done = false;
    if (f.started) continue;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stacks.get() + i * STACK;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, body, 0);
  }
  std::shuffle(order.begin(), order.end(), random);
  for (size_t left = running; left;) {
    moved = false;
    for (unsigned i : order) {
      self = &fibers[i];
      if (self->done || (self->word.at && !self->word.ready())) continue;
      threadIdx = {self->number, 0, 0};
      blockIdx = self->block->index;
      go_on();
      left -= self->done;
    }
    if (!moved) std::fprintf(stderr, "deadlock\n"), std::abort();
  }
}

inline void launch(
    std::function<void()> f, Dim grid, unsigned count, unsigned cluster, unsigned shared,
    unsigned seed) {
  std::mt19937 random(seed);
  kernel = f;
  threads = count;
  shared_bytes = shared;
  blockDim = {count, 1, 1};
  gridDim = grid;
  rooms.clear();
  for (unsigned b = 0; b < cluster; ++b) rooms.emplace_back(new Room(shared));
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; x += cluster) run_cluster(x, y, cluster, random);
  }
}

template <class A, class B> A bits(B x) {
  A y;
  static_assert(sizeof(A) == sizeof(B), "of one size");
  std::memcpy(&y, &x, sizeof y);
  return y;
}
template <class T> uint64_t packed(T x) {
  uint64_t y = 0;
  std::memcpy(&y, &x, sizeof x);
  return y;
}
template <class T> T unpacked(uint64_t x) {
  T y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline uint16_t to_bf16(float x) {
  const uint32_t b = bits<uint32_t>(x);
  if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
inline uint16_t to_f16(float x) { return bits<uint16_t>(_Float16(x)); }
inline float from_f16(uint16_t x) { return float(bits<_Float16>(x)); }
inline float from_bf16(uint16_t x) { return bits<float>(uint32_t(x) << 16); }
// Of each half.
inline uint32_t larger(uint32_t a, uint32_t b, float (*from)(uint16_t)) {
  uint32_t y = 0;
  for (int at = 0; at < 32; at += 16) {
    const uint16_t first = uint16_t(a >> at), second = uint16_t(b >> at);
    const float x = from(first), z = from(second);
    y |= uint32_t(z > x || z != z ? second : first) << at;
  }
  return y;
}

}  // namespace emulated

inline void __syncthreads() { emulated::barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { emulated::meet(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline unsigned __activemask() { return 1u << emulated::lane(); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __ballot_sync(unsigned mask, bool x) {
  const uint64_t* all = emulated::meet(mask, x);
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= unsigned(all[i] != 0) << i;
  return out;
}
inline bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline bool __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == mask; }
template <class T> T __shfl_sync(unsigned mask, T x, unsigned from) {
  return emulated::unpacked<T>(emulated::meet(mask, emulated::packed(x))[from % 32]);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, unsigned by) {
  return __shfl_sync(mask, x, emulated::lane() ^ by);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned by) {
  return __shfl_sync(mask, x, emulated::lane() < by ? emulated::lane() : emulated::lane() - by);
}
template <class T> unsigned __match_any_sync(unsigned mask, T x) {
  const uint64_t* all = emulated::meet(mask, emulated::packed(x));
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) {
    out |= unsigned(mask >> i & 1 && all[i] == emulated::packed(x)) << i;
  }
  return out;
}
template <class F> unsigned reduced(unsigned mask, unsigned x, unsigned start, F f) {
  const uint64_t* all = emulated::meet(mask, x);
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) start = f(start, unsigned(all[i]));
  }
  return start;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  return reduced(mask, x, 0, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
  return reduced(mask, x, ~0u, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned x) {
  return reduced(mask, x, 0, [](unsigned a, unsigned b) { return a + b; });
}
template <class T> T atomicAdd(T* p, T x) {
  const T old = *p;
  *p += x;
  return old;
}
template <class T> T atomicMax(T* p, T x) {
  const T old = *p;
  *p = old > x ? old : x;
  return old;
}
inline unsigned atomicOr(unsigned* p, unsigned x) {
  const unsigned old = *p;
  *p |= x;
  return old;
}
inline unsigned atomicCAS(unsigned* p, unsigned is, unsigned x) {
  const unsigned old = *p;
  if (old == is) *p = x;
  return old;
}
inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline int __double2hiint(double x) { return int(emulated::bits<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return int(emulated::bits<uint64_t>(x)); }
inline double __hiloint2double(int high, int low) {
  return emulated::bits<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
}
inline long long __double2ll_rn(double x) { return std::llrint(x); }

#endif
