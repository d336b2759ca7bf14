#include "runtime/threadpool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "runtime/error.h"
#include "runtime/relax.h"
#include "runtime/ticks.h"

namespace tidemill {

namespace {

using Clock = std::chrono::steady_clock;
// Long enough to bridge the gaps between the loops of a step, short enough that an idle engine costs
// nothing and does not starve the HTTP server on the same cores.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kNap = std::chrono::microseconds(20);

// Unclaimed chunks of a share.
struct Unclaimed {
  uint32_t first, end;
  bool tapered;

  uint32_t left() const { return end - first; }
  // Number of chunks to claim at once.
  uint32_t piece() const { return tapered ? std::max<uint32_t>(1, left() / 3) : 1; }
};

constexpr uint64_t kMostChunks = (uint64_t{1} << 31) - 1;

inline uint64_t word_of(const Unclaimed& u) {
  return static_cast<uint64_t>(u.first) << 33 | static_cast<uint64_t>(u.end) << 2 |
         static_cast<uint64_t>(u.tapered);
}
inline Unclaimed unclaimed_of(uint64_t word) {
  return {static_cast<uint32_t>(word >> 33), static_cast<uint32_t>(word >> 2 & kMostChunks),
          (word & 1) != 0};
}

// Spins until ready() or kSpin has passed; returns whether it is ready. Prefetches meanwhile.
template <class Ready>
bool spin(IdlePrefetcher& idle_prefetcher, int thread, const Ready& ready) {
  if (ready()) return true;
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      if (!idle_prefetcher.prefetch_some(thread)) relax();
    }
  } while (Clock::now() < deadline);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : idle_prefetcher_(std::max(0, threads)) {
  if (threads < 1) {
    throw Error(ErrorKind::Config, "threads must be at least 1, got " + std::to_string(threads),
                "threads");
  }
  lanes_ = std::make_unique<Lane[]>(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    // A constructor that throws runs no destructor, and an unjoined thread would terminate the process.
    join();
    throw Error(ErrorKind::Resource,
                "the system gives no more than " + std::to_string(workers_.size() + 1) +
                    " threads of " + std::to_string(threads) + "; use fewer (--threads)",
                "threads");
  }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
  {
    std::lock_guard lock(sleep_mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

uint64_t ThreadPool::progress() const {
  uint64_t sum = 0;
  for (int i = 0; i < threads(); ++i) {
    sum += lanes_[static_cast<size_t>(i)].done.load(std::memory_order_acquire);
  }
  return sum;
}

std::pair<int64_t, int64_t> ThreadPool::share(int64_t chunks, int thread) const {
  const int64_t each = chunks / threads(), more = chunks % threads();
  const int64_t first = thread * each + std::min<int64_t>(thread, more);
  return {first, first + each + (thread < more)};
}

void ThreadPool::run_erased(int64_t items, const Chunking& chunking, Function function, void* context) {
  if (items <= 0) return;
  const int64_t grain = std::max<int64_t>(1, chunking.grain);
  const int64_t chunks = (items + grain - 1) / grain;
  std::lock_guard turn(turn_);
  Profile* const profile = profile_ != nullptr && profile_->counts_this_thread() ? profile_ : nullptr;
  loop_ = {function, context, items, grain, profile != nullptr};
  int64_t begun = 0;
  if (profile != nullptr) {
    begun = profile->begin_loop();
    clear_busy(begun);
  }
  if (chunks == 1 || workers_.empty()) {
    run_inline(loop_);
  } else {
    run_together(chunks, chunking.tapered);
  }
  if (profile != nullptr) report_busy(*profile, begun);
}

void ThreadPool::run_together(int64_t chunks, bool tapered) {
  if (static_cast<uint64_t>(chunks) > kMostChunks) {
    throw internal_error("a parallel loop has too many chunks");
  }
  const uint64_t target = progress() + static_cast<uint64_t>(chunks);
  failed_.store(false, std::memory_order_relaxed);
  for (int i = 0; i < threads(); ++i) {
    const auto [first, end] = share(chunks, i);
    lanes_[static_cast<size_t>(i)].unclaimed.store(
        word_of({static_cast<uint32_t>(first), static_cast<uint32_t>(end), tapered}),
        std::memory_order_release);
  }
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(sleep_mutex_);
    wake_.notify_all();
  }
  help(0);
  const auto finished = [&] { return progress() == target; };
  if (!spin(idle_prefetcher_, 0, finished)) {
    // A thread that holds a chunk was descheduled, perhaps by this loop: yield our core.
    while (!finished()) std::this_thread::sleep_for(kNap);
  }
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(exception_);
}

void ThreadPool::run_inline(const Loop& loop) {
  std::atomic<uint64_t>& done = lanes_[0].done;
  for (int64_t begin = 0; begin < loop.items; begin += loop.grain) {
    loop.function(loop.context, begin, std::min(loop.items, begin + loop.grain), 0);
    done.store(done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
}

// No thread is within a chunk. This one works from the loop's begin on.
void ThreadPool::clear_busy(int64_t begun) {
  for (int i = 0; i < threads(); ++i) {
    lanes_[static_cast<size_t>(i)].begin.store(i == 0 ? begun : 0, std::memory_order_relaxed);
  }
}

void ThreadPool::report_busy(Profile& profile, int64_t begun) {
  busy_.clear();
  for (int i = 0; i < threads(); ++i) {
    Lane& lane = lanes_[static_cast<size_t>(i)];
    busy_.push_back({lane.begin.exchange(0, std::memory_order_relaxed),
                     lane.end.load(std::memory_order_relaxed)});
  }
  profile.end_loop(begun, busy_.data(), busy_.size());
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (await_epoch(&seen, thread)) help(thread);
}

// Waits for a loop newer than *seen; false if the pool stops.
bool ThreadPool::await_epoch(uint32_t* seen, int thread) {
  uint32_t epoch = 0;
  const auto ready = [&] {
    epoch = epoch_.load(std::memory_order_seq_cst);
    return stop_.load(std::memory_order_relaxed) || epoch != *seen;
  };
  if (!spin(idle_prefetcher_, thread, ready)) {
    std::unique_lock lock(sleep_mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  *seen = epoch;
  return !stop_.load(std::memory_order_relaxed);
}

void ThreadPool::help(int thread) {
  while (take_own(thread) || take_others(thread)) {
  }
  Lane& lane = lanes_[static_cast<size_t>(thread)];
  if (lane.begin.load(std::memory_order_relaxed) != 0) {
    lane.end.store(ticks(), std::memory_order_relaxed);
  }
}

// Runs the next chunks of the thread's own share; false if none is left.
bool ThreadPool::take_own(int thread) {
  std::atomic<uint64_t>& share = lanes_[static_cast<size_t>(thread)].unclaimed;
  uint64_t word = share.load(std::memory_order_acquire);
  for (;;) {
    const Unclaimed u = unclaimed_of(word);
    if (u.left() == 0) return false;
    const uint32_t from = u.first, to = u.first + u.piece();
    if (share.compare_exchange_weak(word, word_of({to, u.end, u.tapered}),
                                    std::memory_order_acq_rel, std::memory_order_acquire)) {
      execute(from, to, thread);
      return true;
    }
  }
}

// Runs chunks from the end of the longest share; false if none is left anywhere.
bool ThreadPool::take_others(int thread) {
  for (;;) {
    std::atomic<uint64_t>* longest = nullptr;
    uint64_t word = 0;
    for (int i = 1; i < threads(); ++i) {
      auto& share = lanes_[static_cast<size_t>((thread + i) % threads())].unclaimed;
      const uint64_t at = share.load(std::memory_order_acquire);
      if (unclaimed_of(at).left() > unclaimed_of(word).left()) {
        longest = &share;
        word = at;
      }
    }
    if (longest == nullptr) return false;
    const Unclaimed u = unclaimed_of(word);
    const uint32_t from = u.end - u.piece();
    if (longest->compare_exchange_strong(word, word_of({u.first, from, u.tapered}),
                                         std::memory_order_acq_rel, std::memory_order_relaxed)) {
      execute(from, u.end, thread);
      return true;
    }
  }
}

// The loop waits for claimed chunks, so its fields stay valid until they are counted.
void ThreadPool::execute(int64_t first, int64_t end, int thread) {
  const Loop& loop = loop_;
  if (loop.timed) {
    std::atomic<int64_t>& begin = lanes_[static_cast<size_t>(thread)].begin;
    if (begin.load(std::memory_order_relaxed) == 0) begin.store(ticks(), std::memory_order_relaxed);
  }
  if (!failed_.load(std::memory_order_relaxed)) {
    try {
      loop.function(loop.context, first * loop.grain, std::min(loop.items, end * loop.grain),
                    thread);
    } catch (...) {
      std::lock_guard lock(exception_mutex_);
      if (!failed_.load(std::memory_order_relaxed)) {
        exception_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    }
  }
  std::atomic<uint64_t>& done = lanes_[static_cast<size_t>(thread)].done;
  done.store(done.load(std::memory_order_relaxed) + static_cast<uint64_t>(end - first),
             std::memory_order_release);
}

}  // namespace tidemill
