#include "model/rope.h"

#include <cmath>

namespace tidemill {

void RopeTable::grow(int64_t count, ThreadPool& pool) {
  const auto have = static_cast<int64_t>(chunks_.size());
  const int64_t want = (count + kChunk - 1) / kChunk;
  if (want <= have) return;
  const size_t half = frequencies_.size();
  std::vector<std::unique_ptr<float[]>> added;
  for (int64_t c = have; c < want; ++c) {
    added.push_back(std::make_unique<float[]>(static_cast<size_t>(kChunk * dim())));
  }
  pool.run((want - have) * kChunk, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = added[static_cast<size_t>(i / kChunk)].get() + (i % kChunk) * dim();
      const auto position = static_cast<float>(have * kChunk + i);
      for (size_t f = 0; f < half; ++f) {
        const float angle = position * frequencies_[f];
        row[f] = std::cos(angle) * scale_;
        row[half + f] = std::sin(angle) * scale_;
      }
    }
  });
  for (auto& chunk : added) chunks_.push_back(std::move(chunk));
}

}  // namespace tidemill
