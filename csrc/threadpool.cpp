#include "threadpool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "error.h"

namespace tidemill {

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kClosed = 0xffffffffu;
// Long enough to bridge the gaps between the loops of a step, short enough that an idle engine
// costs nothing and the HTTP server on the same cores is not starved.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kNap = std::chrono::microseconds(20);

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline uint32_t epoch_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
inline uint32_t chunk_of(uint64_t ticket) { return static_cast<uint32_t>(ticket); }
inline uint64_t make_ticket(uint32_t epoch, uint32_t chunk) {
  return (static_cast<uint64_t>(epoch) << 32) | chunk;
}

inline uint64_t unclaimed(uint32_t epoch) { return static_cast<uint64_t>(epoch) << 1; }

// Spins until ready() or kSpin has passed; true when ready. What the thread is to bring closer is
// asked for meanwhile.
template <class Ready>
bool spin(Ahead& ahead, int thread, const Ready& ready) {
  if (ready()) return true;
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      if (!ahead.ask(thread)) relax();
    }
  } while (Clock::now() < deadline);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : ticket_(make_ticket(0, kClosed)), ahead_(std::max(0, threads)) {
  if (threads < 1) {
    throw Error(ErrorKind::Config, "threads must be at least 1, got " + std::to_string(threads),
                "threads");
  }
  firsts_ = std::make_unique<First[]>(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {
    // No destructor runs for an object whose constructor throws, and a thread that is not joined
    // takes the process with it.
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

void ThreadPool::run_erased(int64_t items, int64_t grain, Function function, void* context) {
  if (items <= 0) return;
  grain = std::max<int64_t>(1, grain);
  const int64_t chunks = (items + grain - 1) / grain;
  std::lock_guard turn(turn_);
  if (chunks == 1 || workers_.empty()) return run_inline(items, grain, function, context);
  if (chunks >= kClosed) throw internal_error("a parallel loop has too many chunks");

  const uint64_t target = completed_.load(std::memory_order_relaxed) + static_cast<uint64_t>(chunks);
  const uint32_t epoch = epoch_of(ticket_.load(std::memory_order_relaxed)) + 1;
  ticket_.store(make_ticket(epoch, kClosed), std::memory_order_seq_cst);
  function_.store(function, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  items_.store(items, std::memory_order_release);
  grain_.store(grain, std::memory_order_release);
  failed_.store(false, std::memory_order_relaxed);
  const int64_t firsts = std::min<int64_t>(chunks, threads());
  for (int64_t i = 0; i < firsts; ++i) {
    firsts_[static_cast<size_t>(i)].claim.store(unclaimed(epoch), std::memory_order_release);
  }
  ticket_.store(make_ticket(epoch, static_cast<uint32_t>(firsts)), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(sleep_mutex_);
    wake_.notify_all();
  }
  help(epoch, 0);
  const auto finished = [&] { return completed_.load(std::memory_order_acquire) == target; };
  if (!spin(ahead_, 0, finished)) {
    // A thread with a chunk has lost its core, perhaps to this very wait: leave ours to it.
    while (!finished()) std::this_thread::sleep_for(kNap);
  }
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(exception_);
}

void ThreadPool::run_inline(int64_t items, int64_t grain, Function function, void* context) {
  for (int64_t begin = 0; begin < items; begin += grain) {
    function(context, begin, std::min(items, begin + grain), 0);
    completed_.fetch_add(1, std::memory_order_relaxed);
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (await_epoch(&seen, thread)) help(seen, thread);
}

// Waits for an open loop that is newer than *seen; false when the pool stops.
bool ThreadPool::await_epoch(uint32_t* seen, int thread) {
  uint64_t ticket = 0;
  const auto ready = [&] {
    ticket = ticket_.load(std::memory_order_seq_cst);
    return stop_.load(std::memory_order_relaxed) ||
           (epoch_of(ticket) != *seen && chunk_of(ticket) != kClosed);
  };
  if (!spin(ahead_, thread, ready)) {
    std::unique_lock lock(sleep_mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  *seen = epoch_of(ticket);
  return !stop_.load(std::memory_order_relaxed);
}

void ThreadPool::help(uint32_t epoch, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  if (epoch_of(ticket) != epoch || chunk_of(ticket) == kClosed) return;
  const Function function = function_.load(std::memory_order_acquire);
  void* const context = context_.load(std::memory_order_acquire);
  const int64_t items = items_.load(std::memory_order_acquire);
  const int64_t grain = grain_.load(std::memory_order_acquire);
  // A claim that succeeds was made while the loop was open with an unfinished chunk, so that what
  // was read above are its fields, and they stay put.
  const auto run_chunk = [&](int64_t chunk) {
    const int64_t begin = chunk * grain;
    execute(function, context, begin, std::min(items, begin + grain), thread);
    completed_.fetch_add(1, std::memory_order_release);
  };
  for (int i = 0; i < threads(); ++i) {
    const int64_t chunk = (thread + i) % threads();
    if (claim_first(epoch, chunk)) run_chunk(chunk);
  }
  ticket = ticket_.load(std::memory_order_acquire);
  while (epoch_of(ticket) == epoch) {
    const int64_t chunk = chunk_of(ticket);
    if (chunk == kClosed || chunk * grain >= items) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    run_chunk(chunk);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

bool ThreadPool::claim_first(uint32_t epoch, int64_t chunk) {
  std::atomic<uint64_t>& claim = firsts_[static_cast<size_t>(chunk)].claim;
  uint64_t free = unclaimed(epoch);
  return claim.load(std::memory_order_relaxed) == free &&
         claim.compare_exchange_strong(free, free | 1, std::memory_order_acq_rel,
                                       std::memory_order_relaxed);
}

void ThreadPool::execute(Function function, void* context, int64_t begin, int64_t end,
                         int thread) {
  if (failed_.load(std::memory_order_relaxed)) return;
  try {
    function(context, begin, end, thread);
  } catch (...) {
    std::lock_guard lock(exception_mutex_);
    if (!failed_.load(std::memory_order_relaxed)) {
      exception_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
  }
}

}  // namespace tidemill
