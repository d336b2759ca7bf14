#include "prefault.h"

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
// It runs for at most a tenth of the time: a kernel that clears a page is not interrupted for it,
// and the thread it keeps from its core keeps the others of its step waiting.
constexpr int kRest = 9;

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

int64_t Prefault::Progress::wanted() const {
  const int64_t at = reached.load(std::memory_order_relaxed);
  return at < 0 ? 0 : std::min((at / unit + 2) * unit, group.blocks);
}

Prefault::Prefault(std::vector<Group> groups) {
  for (Group& group : groups) {
    int64_t widest = 1;
    for (const Array& array : group.arrays) widest = std::max(widest, array.stride);
    auto progress = std::make_unique<Progress>();
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
  Progress& progress = *groups_[static_cast<size_t>(group)];
  if (block <= progress.reached.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    progress.reached.store(block, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

int64_t Prefault::taken(int64_t group) const {
  return groups_[static_cast<size_t>(group)]->taken.load(std::memory_order_acquire);
}

Prefault::Progress* Prefault::behind() {
  for (const auto& progress : groups_) {
    if (progress->taken.load(std::memory_order_relaxed) < progress->wanted()) return progress.get();
  }
  return nullptr;
}

void Prefault::work() {
  step_back();
  while (true) {
    Progress* progress = nullptr;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || (progress = behind()) != nullptr; });
      if (stopping_) return;
    }
    take(*progress);
  }
}

void Prefault::take(Progress& progress) {
  // What steps have come past meanwhile they have taken themselves.
  const int64_t current = progress.reached.load(std::memory_order_relaxed) / progress.unit;
  const int64_t begin =
      std::max(progress.taken.load(std::memory_order_relaxed), current * progress.unit);
  const int64_t end = std::min(begin + progress.unit, progress.group.blocks);
  for (const Array& array : progress.group.arrays) {
    uint8_t* const last = array.base + end * array.stride;
    for (uint8_t* at = array.base + begin * array.stride; at < last; at += kHugePage) {
      const auto start = std::chrono::steady_clock::now();
      touch(at, std::min(at + kHugePage, last));
      const auto rest = kRest * (std::chrono::steady_clock::now() - start);
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, rest, [&] { return stopping_.load(); })) return;
    }
  }
  progress.taken.store(end, std::memory_order_release);
}

}  // namespace tidemill
