// A persistent thread pool for parallel loops of a few microseconds.
//
// A loop is split into chunks, and each thread owns a contiguous share of them. A thread takes chunks
// from the front of its share, so that it reads memory as one stream; when its share is empty it steals
// from the end of the longest remaining share. Which thread runs a chunk is not deterministic, so
// results must not depend on it. Because a share starts on its own thread, its first reads can be
// prefetched (idle_prefetcher.h).
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

#include "runtime/idle_prefetcher.h"
#include "runtime/profile.h"

namespace tidemill {

class ThreadPool {
 public:
  // `threads` includes the caller of run(), which works too.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Ranges that threads prefetch while they wait; set by the caller of run().
  IdlePrefetcher& idle_prefetcher() { return idle_prefetcher_; }

  // Counts the loops of the thread that runs steps from now on; null: none. Not while that thread is in
  // one. What is counted must live until the next call.
  void count_in(Profile* profile) {
    std::lock_guard turn(turn_);
    profile_ = profile;
  }
  // For the thread that runs steps.
  Profile* profile() const { return profile_; }

  // Number of chunks finished since the start: it advances while work is done.
  uint64_t progress() const;

  // A thread's share of `chunks` chunks: [first, end).
  std::pair<int64_t, int64_t> share(int64_t chunks, int thread) const;

  // Calls body(begin, end, thread) for consecutive ranges of at most `grain` items that together cover
  // [0, items), and returns when all have run. thread is in [0, threads()), and no two concurrent calls
  // have the same one. The first exception of a body is rethrown here. Concurrent callers take turns; a
  // body must not call run().
  template <class Body>
  void run(int64_t items, int64_t grain, Body&& body) {
    run_erased(items, {grain, false}, erased<Body>, context_of(body));
  }

  // The same with ranges of decreasing size: a third of what remains of the thread's share, down to
  // `least` items. Gives long streams and threads that finish together.
  template <class Body>
  void run_tapered(int64_t items, int64_t least, Body&& body) {
    run_erased(items, {least, true}, erased<Body>, context_of(body));
  }

 private:
  using Function = void (*)(void* context, int64_t begin, int64_t end, int thread);
  struct Chunking {
    int64_t grain;  // items per chunk
    bool tapered;   // whether several chunks may be claimed at once
  };
  struct Loop {
    Function function = nullptr;
    void* context = nullptr;
    int64_t items = 0, grain = 1;
    bool timed = false;
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
  void run_together(int64_t chunks, bool tapered);
  void clear_busy(int64_t begun);
  void report_busy(Profile& profile, int64_t begun);
  void work(int thread);
  void join();
  bool await_epoch(uint32_t* seen, int thread);
  void help(int thread);
  bool take_own(int thread);
  bool take_others(int thread);
  void execute(int64_t first, int64_t end, int thread);

  // A thread's share: its unclaimed chunks as one word, claimed by compare-and-swap. The word contains
  // everything a claim depends on, so that a delayed thread, even one that is several loops behind,
  // makes a valid claim. `done` counts the chunks this thread has run since the start and is written by
  // it alone.
  struct alignas(64) Lane {
    std::atomic<uint64_t> unclaimed{0};
    alignas(64) std::atomic<uint64_t> done{0};
    // Of a loop that is timed: when this thread began its first piece (0: no piece), and when it found no
    // other, which it may write after the loop's end.
    std::atomic<int64_t> begin{0}, end{0};
  };
  std::unique_ptr<Lane[]> lanes_;
  // Written while no chunk is unclaimed; read by threads that have claimed one.
  alignas(64) Loop loop_;
  alignas(64) std::atomic<uint32_t> epoch_{0};  // number of loops started
  std::mutex turn_;                              // serializes callers of run()
  Profile* profile_ = nullptr;
  std::vector<Profile::Busy> busy_;

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
