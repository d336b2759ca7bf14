// A count that one thread raises and others wait for, blocking without spinning.
//
// Steps wait on it for the matrices they need, which are packed concurrently in order of use.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

namespace tidemill {

class Latch {
 public:
  int64_t count() const { return count_.load(std::memory_order_acquire); }
  // Publishes the first `count` items and all writes made before. Called by one thread at a time.
  void raise(int64_t count);
  // No further items will come: current and future waiters for more get this error. The first call
  // wins.
  void fail(std::exception_ptr error);
  // Blocks until the first `count` items are published; throws the error of `fail` if they never will
  // be.
  void await(int64_t count);

 private:
  std::atomic<int64_t> count_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
};

}  // namespace tidemill
