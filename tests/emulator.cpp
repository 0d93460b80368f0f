// A CUDA block on one host thread: every thread of it is a fiber that runs until it has to wait.
//
// Fibers take turns in an order that a seed shuffles, so that what depends on the order of threads
// differs from seed to seed. A round in which nobody gets on is a deadlock.
#include "emulator.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

Dim threadIdx, blockIdx, blockDim, gridDim;
unsigned emulated_misaligned;

namespace emulated {
namespace {

// The odd lines keep the stacks of a block from falling into one set of a cache.
constexpr size_t STACK = (64 << 10) + 5 * 64, PAGE = 4096;

// What lanes hand each other. Each second round has room of its own: who is late to read finds what
// was brought, since nobody can begin the round after the next without it.
struct Meeting {
  unsigned arrived = 0, rounds = 0;
  uint64_t brought[2][32] = {};
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
  unsigned value = 0;

  bool ready() const { return *at != value; }
};

struct Fiber {
  ucontext_t context;  // where it starts
  jmp_buf place;       // where it goes on: a jump, unlike a context, costs no system call
  Word word;           // what it waits for; without an address it looks itself
  Block* block;
  unsigned number, phase = 0;
  bool started = false, done = false;
};

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

std::vector<Block> blocks;
std::vector<Fiber> fibers;
std::vector<std::unique_ptr<Room>> rooms;
// Memory that is never filled, so that only what is used of a stack takes room.
std::unique_ptr<char[]> stacks;
size_t stacked;
jmp_buf scheduler;
Fiber* self;
bool moved;
unsigned cluster_arrived, cluster_rounds, threads, shared_bytes, running;
std::map<const void*, Coming> coming;
void (*kernel)(const void*);
const void* arguments;

void wait() {
  if (_setjmp(self->place) == 0) _longjmp(scheduler, 1);
}
// Apart, so that no variable lives across the jump.
__attribute__((noinline)) void go_on() {
  if (_setjmp(scheduler)) return;
  if (self->started) _longjmp(self->place, 1);
  self->started = true;
  setcontext(&self->context);
}
// Until the word is another.
void wait_for(Word word) {
  if (!word.ready()) {
    self->word = word;
    wait();
    self->word.at = nullptr;
  }
  moved = true;
}

// Started once, a fiber is a thread of one block after the other: starting costs system calls.
void body() {
  for (;; wait()) {
    kernel(arguments);
    self->done = true;
    moved = true;
    Block& b = *self->block;
    // Who has left is not waited for.
    if (--b.alive && b.waiting == b.alive) b.waiting = 0, ++b.rounds;
  }
}

// Run the blocks of a cluster to their end.
void run_cluster(unsigned first, unsigned row, unsigned size, std::mt19937& random) {
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

}  // namespace

void launch(
    void (*of)(const void*), const void* args, Dim grid, unsigned count, unsigned cluster,
    unsigned shared, unsigned seed) {
  std::mt19937 random(seed);
  kernel = of, arguments = args;
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

void barrier() {
  Block& b = *self->block;
  const unsigned round = b.rounds;
  moved = true;
  if (++b.waiting == b.alive) b.waiting = 0, ++b.rounds;
  wait_for({&b.rounds, round});
}
void cluster_arrive() {
  self->phase = cluster_rounds;
  moved = true;
  if (++cluster_arrived == running) cluster_arrived = 0, ++cluster_rounds;
}
void cluster_wait() { wait_for({&cluster_rounds, self->phase}); }

const uint64_t* meet(unsigned mask, uint64_t x) {
  Warp& warp = self->block->warps[self->number / 32];
  Meeting& m = mask == ~0u ? warp.whole : warp.some[mask];
  const unsigned bit = 1u << lane(), round = m.rounds;
  if (!(mask & bit)) std::fprintf(stderr, "a lane outside of its mask\n"), std::abort();
  uint64_t* const brought = m.brought[round % 2];
  brought[lane()] = x;
  moved = true;
  if ((m.arrived |= bit) == mask) m.arrived = 0, ++m.rounds;
  wait_for({&m.rounds, round});
  return brought;
}

char* shared_memory() { return self->block->shared; }
char* fixed_memory() { return self->block->fixed.data(); }
void* of_block(void* p, unsigned rank) {
  Block &mine = *self->block, &there = blocks[rank];
  char* at = static_cast<char*>(p);
  const ptrdiff_t place = at - mine.fixed.data();
  if (place >= 0 && place < ptrdiff_t(FIXED)) return there.fixed.data() + place;
  return there.shared + (at - mine.shared);
}

void bulk_expect(const void* barrier, unsigned bytes) { coming[barrier].expected = bytes; }
void bulk_copy(void* to, const void* from, unsigned bytes, const void* barrier) {
  Coming& c = coming[barrier];
  if ((uint64_t(to) | uint64_t(from) | bytes) % 16 || bytes > c.expected) std::abort();
  c.expected -= bytes;
  c.copies.push_back({to, from, bytes});
  // Nothing is known of what is there until they have come.
  std::memset(to, 0xcd, bytes);
}
void bulk_wait(unsigned long long* barrier, unsigned phase) {
  Coming& c = coming[barrier];
  while (c.copies.empty() && (*barrier & 1) == phase) wait();
  moved = true;
  if ((*barrier & 1) != phase) return;
  if (c.expected) std::abort();
  for (const auto& copy : c.copies) std::memcpy(copy.to, copy.from, copy.bytes);
  c.copies.clear();
  ++*barrier;
}

}  // namespace emulated
