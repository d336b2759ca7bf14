#include "runtime/latch.h"

namespace tidemill {

void Latch::raise(int64_t count) {
  {
    std::lock_guard lock(mutex_);
    count_.store(count, std::memory_order_release);
  }
  changed_.notify_all();
}

void Latch::fail(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
  }
  changed_.notify_all();
}

void Latch::await(int64_t count) {
  if (this->count() >= count) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return this->count() >= count || error_; });
  if (this->count() < count) std::rethrow_exception(error_);
}

}  // namespace tidemill
