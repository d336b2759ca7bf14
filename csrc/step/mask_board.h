// Token masks delivered to a running step.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "runtime/step.h"

namespace tidemill {

// Holds the masks of the rows that announced them: one per position that a row samples. Masks may arrive
// from any thread until sampling has taken them; the sampler waits for missing ones.
class MaskBoard {
 public:
  MaskBoard(const StepInput& step, int64_t vocab) : bytes_((vocab + 7) / 8) {
    masks_.resize(step.await_mask.size());
    for (size_t r = 0; r < masks_.size(); ++r) {
      if (step.await_mask[r]) masks_[r].resize(static_cast<size_t>(step.positions(r)));
    }
  }

  // The mask of what follows the row's first `draft` drafts. Error (Internal) for a row that awaits none,
  // a second mask, or a wrong size.
  void set(int64_t row, int64_t draft, const uint8_t* bits, int64_t size) {
    if (size != bytes_) {
      throw internal_error("a token mask has " + std::to_string(size) + " bytes, the vocabulary needs " +
                           std::to_string(bytes_));
    }
    std::lock_guard lock(mutex_);
    if (row < 0 || row >= static_cast<int64_t>(masks_.size()) || !awaits(row)) {
      throw internal_error("row " + std::to_string(row) + " awaits no token mask");
    }
    auto& of_row = masks_[static_cast<size_t>(row)];
    if (draft < 0 || draft >= static_cast<int64_t>(of_row.size())) {
      throw internal_error("row " + std::to_string(row) + " has no draft " + std::to_string(draft));
    }
    auto& mask = of_row[static_cast<size_t>(draft)];
    if (!mask.empty()) {
      throw internal_error("row " + std::to_string(row) + " has its token mask already");
    }
    mask.assign(bits, bits + size);
    ++given_;
    arrived_.notify_all();
  }

  bool awaits(int64_t row) const { return !masks_[static_cast<size_t>(row)].empty(); }

  // The mask of one of the row's positions, or null while it is missing. Masks never change once set.
  const uint8_t* get(int64_t row, int64_t draft) {
    std::lock_guard lock(mutex_);
    const auto& mask = masks_[static_cast<size_t>(row)][static_cast<size_t>(draft)];
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
  std::vector<std::vector<std::vector<uint8_t>>> masks_;  // per row that awaits them, per position
  const int64_t bytes_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  int64_t given_ = 0;
  bool cancelled_ = false;
};

}  // namespace tidemill
