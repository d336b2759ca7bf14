// Token masks delivered to a running step.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/error.h"

namespace tidemill {

// Holds the mask of every row that announced one. Masks may arrive from any thread until sampling has
// taken them; the sampler waits for missing ones.
class MaskBoard {
 public:
  MaskBoard(const std::vector<uint8_t>& awaited, int64_t vocab)
      : awaited_(awaited), masks_(awaited.size()), bytes_((vocab + 7) / 8) {}

  // Error (Internal) for a row that awaits none, a second mask, or a wrong size.
  void set(int64_t row, int64_t draft, const uint8_t* bits, int64_t size) {
    if (draft != 0) {
      throw Error(ErrorKind::Unsupported, "the native backend does not verify drafts yet", "draft");
    }
    if (size != bytes_) {
      throw internal_error("a token mask has " + std::to_string(size) + " bytes, the vocabulary needs " +
                           std::to_string(bytes_));
    }
    std::lock_guard lock(mutex_);
    if (row < 0 || row >= static_cast<int64_t>(awaited_.size()) ||
        !awaited_[static_cast<size_t>(row)]) {
      throw internal_error("row " + std::to_string(row) + " awaits no token mask");
    }
    auto& mask = masks_[static_cast<size_t>(row)];
    if (!mask.empty()) {
      throw internal_error("row " + std::to_string(row) + " has its token mask already");
    }
    mask.assign(bits, bits + size);
    ++given_;
    arrived_.notify_all();
  }

  bool awaits(int64_t row) const { return awaited_[static_cast<size_t>(row)] != 0; }

  // The row's mask, or null while it is missing. Masks never change once set.
  const uint8_t* get(int64_t row) {
    std::lock_guard lock(mutex_);
    const auto& mask = masks_[static_cast<size_t>(row)];
    return mask.empty() ? nullptr : mask.data();
  }

  // Blocks until more than `seen` masks have been set and returns their number. Error (Unavailable) if
  // the board is cancelled.
  int64_t wait_for_more(int64_t seen) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return cancelled_ || given_ > seen; });
    if (cancelled_) {
      throw Error(ErrorKind::Unavailable, "the backend was closed while a step waited for a mask");
    }
    return given_;
  }

  void cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    arrived_.notify_all();
  }

 private:
  const std::vector<uint8_t> awaited_;
  std::vector<std::vector<uint8_t>> masks_;
  const int64_t bytes_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  int64_t given_ = 0;
  bool cancelled_ = false;
};

}  // namespace tidemill
