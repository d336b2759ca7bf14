#include "runtime/prefault.h"

#include <algorithm>
#include <chrono>
#include <utility>

#ifdef __linux__
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tidemill {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSmallPage = 4096;
// Beside steps it runs for at most a tenth of the time: a kernel that clears a page is not interrupted
// for it, and the thread it keeps from its core keeps the others of its step waiting. Else for half.
constexpr int kBusyRest = 9, kIdleRest = 1;
// Taken for the next burst: a share of the cache, since it may never be needed, and no more.
constexpr int64_t kBurstShare = 4, kBurstBytes = int64_t{2} << 30;

#if defined(__GNUC__)
__attribute__((no_sanitize_thread))  // beside a step that writes the same page
#endif
void touch(uint8_t* begin, uint8_t* end) {
  for (uint8_t* p = begin; p < end; p += kSmallPage) __atomic_fetch_or(p, 0, __ATOMIC_RELAXED);
}

void step_back() {
#ifdef __linux__
  pthread_setname_np(pthread_self(), "tidemill-pages");
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
#endif
}

}  // namespace

int64_t Prefault::Progress::wanted(bool idle) const {
  const int64_t at = reached.load(std::memory_order_relaxed);
  // The next unit from the middle of the one before.
  const int64_t soon = at < 0 ? 0 : ((at + std::max<int64_t>(1, unit / 2)) / unit + 1) * unit;
  const int64_t next = idle ? at + 1 + std::min(burst, most) : 0;
  return std::min(std::max(soon, next), limit.load(std::memory_order_relaxed));
}

void Prefault::Progress::settle() {
  const int64_t at = reached.load(std::memory_order_relaxed);
  burst = std::max(burst, at - settled);
  settled = at;
}

Prefault::Prefault(std::vector<Group> groups, std::chrono::milliseconds quiet) : quiet_(quiet) {
  int64_t total = 0;
  for (const Group& group : groups) {
    for (const Array& array : group.arrays) total += array.stride * group.blocks;
  }
  const double share = std::min(1.0 / kBurstShare, static_cast<double>(kBurstBytes) /
                                                       static_cast<double>(std::max<int64_t>(total, 1)));
  for (Group& group : groups) {
    int64_t widest = 1;
    for (const Array& array : group.arrays) widest = std::max(widest, array.stride);
    auto progress = std::make_unique<Progress>();
    progress->most = static_cast<int64_t>(share * static_cast<double>(group.blocks));
    progress->limit = group.blocks;
    progress->group = std::move(group);
    progress->unit = std::max<int64_t>(1, kHugePage / widest);
    groups_.push_back(std::move(progress));
  }
  thread_ = std::thread([this] { work(); });
}

Prefault::~Prefault() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefault::reached(int64_t group, int64_t block) {
  steps_.fetch_add(1, std::memory_order_relaxed);
  Progress& progress = *groups_[static_cast<size_t>(group)];
  if (block <= progress.reached.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    progress.reached.store(block, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

void Prefault::given_back(int64_t group, int64_t first) {
  steps_.fetch_add(1, std::memory_order_relaxed);  // what is being taken for a burst is given up
  Progress& progress = *groups_[static_cast<size_t>(group)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t at = std::min(progress.reached.load(std::memory_order_relaxed), first - 1);
    progress.reached.store(at, std::memory_order_relaxed);
    progress.settled = at;
    progress.burst = 0;
    const int64_t taken = progress.taken.load(std::memory_order_relaxed);
    progress.taken.store(std::min(taken, first / progress.unit * progress.unit),
                         std::memory_order_relaxed);
  }
  changed_.notify_all();
}

void Prefault::limit(int64_t group, int64_t blocks) {
  steps_.fetch_add(1, std::memory_order_relaxed);  // what is being taken for a burst is given up
  Progress& progress = *groups_[static_cast<size_t>(group)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    progress.limit.store(blocks, std::memory_order_relaxed);
    const int64_t taken = progress.taken.load(std::memory_order_relaxed);
    progress.taken.store(std::min(taken, blocks / progress.unit * progress.unit),
                         std::memory_order_relaxed);
  }
  changed_.notify_all();
}

int64_t Prefault::limit(int64_t group) const {
  return groups_[static_cast<size_t>(group)]->limit.load(std::memory_order_relaxed);
}

int64_t Prefault::taken(int64_t group) const {
  return groups_[static_cast<size_t>(group)]->taken.load(std::memory_order_acquire);
}

Prefault::Progress* Prefault::behind(bool idle) {
  for (const auto& progress : groups_) {
    if (progress->taken.load(std::memory_order_relaxed) < progress->wanted(idle))
      return progress.get();
  }
  return nullptr;
}

bool Prefault::unsettled() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& progress) {
    return progress->reached.load(std::memory_order_relaxed) != progress->settled;
  });
}

void Prefault::work() {
  step_back();
  while (true) {
    uint64_t steps = 0;
    Progress* next = nullptr;
    bool idle = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto due = [&] { return stopping_ || (next = behind(false)) != nullptr; };
      changed_.wait(lock, [&] { return stopping_ || unsettled() || behind(true) != nullptr; });
      steps = steps_.load(std::memory_order_relaxed);
      changed_.wait_for(lock, quiet_, due);
      if (stopping_) return;
      idle = next == nullptr && steps == steps_.load(std::memory_order_relaxed);
      if (idle) {
        for (const auto& progress : groups_) progress->settle();
        next = behind(true);
      }
    }
    if (next == nullptr) continue;
    if (!idle) {
      take(*next, kBusyRest, nullptr);
      continue;
    }
    while (next != nullptr) {
      take(*next, kIdleRest, &steps);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_ || steps != steps_.load(std::memory_order_relaxed)) break;
      next = behind(true);
    }
  }
}

// The next unit of blocks. With `steps`: given up when a step begins.
void Prefault::take(Progress& progress, int rest, const uint64_t* steps) {
  // What steps have come past meanwhile they have taken themselves.
  const int64_t current = progress.reached.load(std::memory_order_relaxed) / progress.unit;
  const int64_t begin =
      std::max(progress.taken.load(std::memory_order_relaxed), current * progress.unit);
  const int64_t end =
      std::min(begin + progress.unit, progress.limit.load(std::memory_order_relaxed));
  for (const Array& array : progress.group.arrays) {
    uint8_t* const last = array.base + end * array.stride;
    for (uint8_t* at = array.base + begin * array.stride; at < last; at += kHugePage) {
      if (steps != nullptr && *steps != steps_.load(std::memory_order_relaxed)) return;
      const auto start = std::chrono::steady_clock::now();
      touch(at, std::min(at + kHugePage, last));
      const auto pause = rest * (std::chrono::steady_clock::now() - start);
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, pause, [&] { return stopping_.load(); })) return;
    }
  }
  progress.taken.store(end, std::memory_order_release);
}

}  // namespace tidemill
