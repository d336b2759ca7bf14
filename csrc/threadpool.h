// A persistent thread pool for parallel loops that last microseconds.
//
// A loop is cut into chunks. A thread begins with the chunk of its own number, then takes what
// others have not begun with, then claims chunks from one atomic ticket until none is left. Which
// thread runs which chunk is left to chance, so a loop's result must not depend on it; that a
// thread's first chunk is most often its own lets it be brought closer before (ahead.h).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "ahead.h"

namespace tidemill {

class ThreadPool {
 public:
  // `threads` counts the caller of run(), which works too.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // What threads bring closer while they wait; for the caller of run() to fill.
  Ahead& ahead() { return ahead_; }

  // Chunks finished since the start: it advances while work is done.
  uint64_t progress() const { return completed_.load(std::memory_order_relaxed); }

  // Calls body(begin, end, thread) for consecutive ranges of at most `grain` items that together
  // cover [0, items), and returns when all have run. thread is in [0, threads()) and no two
  // concurrent calls share one. The first exception of a body is rethrown here. Callers from
  // several threads take turns; a body must not call run().
  template <class Body>
  void run(int64_t items, int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(items, grain,
               [](void* context, int64_t begin, int64_t end, int thread) {
                 (*static_cast<Plain*>(context))(begin, end, thread);
               },
               const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, int64_t begin, int64_t end, int thread);

  void run_erased(int64_t items, int64_t grain, Function function, void* context);
  void run_inline(int64_t items, int64_t grain, Function function, void* context);
  void work(int thread);
  void join();
  bool await_epoch(uint32_t* seen, int thread);
  void help(uint32_t epoch, int thread);
  bool claim_first(uint32_t epoch, int64_t chunk);
  void execute(Function function, void* context, int64_t begin, int64_t end, int thread);

  // Epoch of the loop (high half) and its next unclaimed chunk (low half). A chunk is claimed by
  // compare-and-swap on the whole word, so a late thread can never claim from a newer loop with an
  // older loop's fields.
  alignas(64) std::atomic<uint64_t> ticket_;
  // Epoch of the loop (shifted) and whether the chunk of that number is claimed: of the first
  // chunks, one a thread, which no ticket counts.
  struct alignas(64) First {
    std::atomic<uint64_t> claim{1};
  };
  std::unique_ptr<First[]> firsts_;
  alignas(64) std::atomic<uint64_t> completed_{0};
  std::mutex turn_;  // of the loop's caller
  // The loop's fields. Written only while the ticket is closed.
  alignas(64) std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> items_{0};
  std::atomic<int64_t> grain_{1};

  std::atomic<bool> failed_{false};
  std::exception_ptr exception_;
  std::mutex exception_mutex_;

  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  Ahead ahead_;
  std::vector<std::thread> workers_;
};

}  // namespace tidemill
