// A persistent thread pool for parallel loops that last microseconds.
//
// A loop is cut into chunks, and every thread has a share of them, which lie side by side. It takes
// its own from the front, so that it reads memory in one stream; a thread that has none left takes
// from the end of the longest share there is. Which thread runs which chunk is left to chance, so a
// loop's result must not depend on it; that a share begins with its own thread lets what it reads
// be brought closer before (idle_prefetcher.h).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "idle_prefetcher.h"

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
  IdlePrefetcher& idle_prefetcher() { return idle_prefetcher_; }

  // Chunks finished since the start: it advances while work is done.
  uint64_t progress() const;

  // The chunks of `chunks` that are a thread's share: from the first to the one behind the last.
  std::pair<int64_t, int64_t> share(int64_t chunks, int thread) const;

  // Calls body(begin, end, thread) for consecutive ranges of at most `grain` items that together
  // cover [0, items), and returns when all have run. thread is in [0, threads()) and no two
  // concurrent calls share one. The first exception of a body is rethrown here. Callers from
  // several threads take turns; a body must not call run().
  template <class Body>
  void run(int64_t items, int64_t grain, Body&& body) {
    run_erased(items, {grain, false}, erased<Body>, context_of(body));
  }

  // The same with ranges that are long at first, a third of what is left of a thread's share, and
  // shorter and shorter, down to `least` items: long streams, and threads that end together.
  template <class Body>
  void run_tapered(int64_t items, int64_t least, Body&& body) {
    run_erased(items, {least, true}, erased<Body>, context_of(body));
  }

 private:
  using Function = void (*)(void* context, int64_t begin, int64_t end, int thread);
  struct Chunking {
    int64_t grain;  // items of a chunk
    bool tapered;   // whether several chunks are taken at once
  };
  struct Loop {
    Function function = nullptr;
    void* context = nullptr;
    int64_t items = 0, grain = 1;
  };

  template <class Body>
  static void erased(void* context, int64_t begin, int64_t end, int thread) {
    (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end, thread);
  }
  template <class Body>
  static void* context_of(Body& body) {
    return const_cast<void*>(static_cast<const void*>(&body));
  }

  void run_erased(int64_t items, const Chunking& chunking, Function function, void* context);
  void run_inline(const Loop& loop);
  void work(int thread);
  void join();
  bool await_epoch(uint32_t* seen, int thread);
  void help(int thread);
  bool take_own(int thread);
  bool take_others(int thread);
  void execute(int64_t first, int64_t end, int thread);

  // A thread's share of the loop: its chunks that nobody has claimed, as one word that is claimed
  // from by compare-and-swap. It says all that a claim depends on, so that a thread that is late,
  // even by some loops, claims what is right to claim. `done` counts the chunks that the thread has
  // run since the start; nobody else writes there.
  struct alignas(64) Lane {
    std::atomic<uint64_t> unclaimed{0};
    alignas(64) std::atomic<uint64_t> done{0};
  };
  std::unique_ptr<Lane[]> lanes_;
  // Written while no chunk is left, and read by those who have claimed one.
  alignas(64) Loop loop_;
  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts the loops
  std::mutex turn_;                              // of the loop's caller

  std::atomic<bool> failed_{false};
  std::exception_ptr exception_;
  std::mutex exception_mutex_;

  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  IdlePrefetcher idle_prefetcher_;
  std::vector<std::thread> workers_;
};

}  // namespace tidemill
