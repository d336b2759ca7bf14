#include "runtime/group.h"

#include <sys/mman.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <string>
#include <thread>

#include "runtime/error.h"
#include "runtime/relax.h"

namespace tidemill {

namespace {

using Clock = std::chrono::steady_clock;
// Between two products of a step ranks wait for each other about as long as threads do (threadpool.cpp).
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kNap = std::chrono::milliseconds(10);
// A rank that has not come after so long never will. Those that follow may wait for the leader, which
// samples between two steps.
constexpr auto kPatience = std::chrono::seconds(60);

// A row fits in a slot. Of many rows so much is exchanged at a time that it stays in the caches between
// the rank that writes it and those that read it.
constexpr int64_t kSlotBytes = int64_t{8} << 20, kChunkBytes = int64_t{1} << 20;
// Copies of fewer bytes than this stay on the calling thread.
constexpr int64_t kInlineBytes = int64_t{64} << 10;
constexpr int64_t kFloat = sizeof(float);

void copy_rows(ThreadPool& pool, int64_t count, int64_t width, const uint8_t* from, int64_t from_stride,
               uint8_t* to, int64_t to_stride) {
  if (width == 0) return;
  pool.run(count, std::max<int64_t>(1, kInlineBytes / width), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(width));
    }
  });
}

// Rows of so many bytes that are exchanged at a time; Error (Internal) if one does not fit.
int64_t rows_at_once(int64_t bytes) {
  if (bytes > kSlotBytes) throw internal_error("rows too wide to be exchanged");
  return std::max<int64_t>(1, kChunkBytes / bytes);
}

}  // namespace

struct Group::Shared {
  struct alignas(64) Rank {
    std::atomic<uint32_t> turn;  // meetings it has come to
  };
  alignas(64) std::atomic<uint32_t> failed;
  alignas(64) std::atomic<uint32_t> bell;  // rung (changed) for ranks that sleep
  std::atomic<uint32_t> sleepers;
  Rank ranks[kMostRanks];
  alignas(64) uint8_t slots[2][kSlotBytes];
};

int64_t Group::shared_bytes() { return static_cast<int64_t>(sizeof(Shared)); }

Group::Group(int descriptor, int rank, int ranks) : rank_(rank), ranks_(ranks) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    throw Error(ErrorKind::Config,
                "tensor_parallel must be at most " + std::to_string(kMostRanks), "tensor_parallel");
  }
  void* const mapped =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorKind::Resource, "the memory that the model's processes share cannot be mapped");
  }
  shared_ = static_cast<Shared*>(mapped);
}

Group::~Group() { munmap(shared_, sizeof(Shared)); }

bool Group::failed() const { return shared_->failed.load(std::memory_order_relaxed) != 0; }

void Group::throw_failed() const {
  throw Error(ErrorKind::Unavailable,
              "one of the processes that compute this model together has ended or does not answer");
}

void Group::fail() {
  shared_->failed.store(1);
  shared_->bell.fetch_add(1);
#ifdef __linux__
  syscall(SYS_futex, &shared_->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

bool Group::all_here() const {
  for (int r = 0; r < ranks_; ++r) {
    const uint32_t turn = shared_->ranks[r].turn.load(std::memory_order_acquire);
    if (static_cast<int32_t>(turn - turn_) < 0) return false;
  }
  return true;
}

void Group::meet(ThreadPool& pool) {
  ++turn_;
  shared_->ranks[rank_].turn.store(turn_, std::memory_order_seq_cst);
  if (shared_->sleepers.load(std::memory_order_seq_cst) > 0) {
    shared_->bell.fetch_add(1, std::memory_order_seq_cst);
#ifdef __linux__
    syscall(SYS_futex, &shared_->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
  }
  const auto deadline = Clock::now() + kSpin;
  while (!all_here()) {
    for (int i = 0; i < 64 && !all_here(); ++i) {
      if (!pool.idle_prefetcher().prefetch_some(0)) relax();
    }
    if (Clock::now() >= deadline) {
      sleep_until_here();
      break;
    }
  }
  if (failed()) throw_failed();
}

void Group::sleep_until_here() {
  shared_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  const auto deadline = Clock::now() + kPatience;
  while (!failed()) {
    const uint32_t bell = shared_->bell.load(std::memory_order_seq_cst);
    if (all_here()) break;
#ifdef __linux__
    const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
    syscall(SYS_futex, &shared_->bell, FUTEX_WAIT, bell, &nap, nullptr, 0);
#else
    static_cast<void>(bell);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
    if (leads() && Clock::now() >= deadline) fail();
  }
  shared_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

uint8_t* Group::slot() const { return shared_->slots[turn_ % 2]; }

void Group::gather(ThreadPool& pool, float* rows, int64_t stride, int64_t count, Bounds bounds,
                   bool leader_only) {
  for (int64_t& bound : bounds) bound *= kFloat;
  gather(pool, reinterpret_cast<uint8_t*>(rows), stride * kFloat, count, bounds, leader_only);
}

void Group::gather(ThreadPool& pool, uint8_t* rows, int64_t stride, int64_t count, const Bounds& bounds,
                   bool leader_only) {
  const auto first = [&](int r) { return bounds[static_cast<size_t>(r)]; };
  const auto width = [&](int r) { return first(r + 1) - first(r); };
  const int64_t most = rows_at_once(first(ranks_));
  for (int64_t row = 0; row < count; row += most) {
    const int64_t part = std::min(most, count - row);
    uint8_t *const shared = slot(), *const here = rows + row * stride;
    if (!leader_only || !leads()) {
      copy_rows(pool, part, width(rank_), here + first(rank_), stride, shared + first(rank_) * part,
                width(rank_));
    }
    meet(pool);
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_ || (leader_only && !leads())) continue;
      copy_rows(pool, part, width(r), shared + first(r) * part, width(r), here + first(r), stride);
    }
  }
}

void Group::gather_rows(ThreadPool& pool, float* rows, int64_t stride, int64_t width,
                        const std::vector<int>& owner) {
  const auto count = static_cast<int64_t>(owner.size());
  const size_t bytes = static_cast<size_t>(width * kFloat);
  const int64_t most = rows_at_once(width * kFloat);
  for (int64_t row = 0; row < count; row += most) {
    const int64_t end = std::min(count, row + most);
    float* const shared = reinterpret_cast<float*>(slot());
    for (int64_t i = row; i < end; ++i) {
      if (owner[static_cast<size_t>(i)] != rank_) continue;
      std::memcpy(shared + (i - row) * width, rows + i * stride, bytes);
    }
    meet(pool);
    for (int64_t i = row; i < end; ++i) {
      if (owner[static_cast<size_t>(i)] == rank_) continue;
      std::memcpy(rows + i * stride, shared + (i - row) * width, bytes);
    }
  }
}

void Group::broadcast(ThreadPool& pool, std::vector<int32_t>& values) {
  auto* const shared = reinterpret_cast<int32_t*>(slot());
  if (leads()) {
    if (static_cast<int64_t>(values.size()) >= kSlotBytes / kFloat) {
      throw internal_error("too many values to be exchanged");
    }
    shared[0] = static_cast<int32_t>(values.size());
    std::copy(values.begin(), values.end(), shared + 1);
  }
  meet(pool);
  if (!leads()) values.assign(shared + 1, shared + 1 + shared[0]);
}

}  // namespace tidemill
