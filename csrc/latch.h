// A count that one thread raises and others wait for, without spinning.
//
// Steps wait on it for the matrices they need, which are packed beside them in the order of need.
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
  // The first `count` are there, with all that was written before. One thread at a time.
  void raise(int64_t count);
  // No more will come: whoever waits for more, now or later, gets this error. The first one stands.
  void fail(std::exception_ptr error);
  // Returns when the first `count` are there; throws what `fail` was given where they never will be.
  void await(int64_t count);

 private:
  std::atomic<int64_t> count_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
};

}  // namespace tidemill
