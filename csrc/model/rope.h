// Tables of cosines and sines, extended as positions are reached.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/threadpool.h"

namespace tidemill {

// The angle of position p and frequency f is float(p) * f, rounded to float as in the reference
// implementations, so that long positions agree with them.
class RopeTable {
 public:
  // `scale` multiplies cosines and sines.
  explicit RopeTable(std::vector<float> inverse_frequencies, float scale = 1.0f)
      : frequencies_(std::move(inverse_frequencies)), scale_(scale) {}

  int64_t dim() const { return 2 * static_cast<int64_t>(frequencies_.size()); }
  // Computes all positions below `count`. Must not run concurrently with `at`.
  void grow(int64_t count, ThreadPool& pool);
  // dim / 2 cosines, then dim / 2 sines.
  const float* at(int64_t position) const {
    return chunks_[static_cast<size_t>(position / kChunk)].get() + (position % kChunk) * dim();
  }

 private:
  static constexpr int64_t kChunk = 1024;
  std::vector<float> frequencies_;
  float scale_;
  std::vector<std::unique_ptr<float[]>> chunks_;  // chunks never move
};

}  // namespace tidemill
