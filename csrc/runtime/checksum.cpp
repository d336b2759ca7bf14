#include "runtime/checksum.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tidemill {

namespace {

constexpr int64_t kChunk = int64_t{1} << 20;
constexpr int kLanes = 8;  // independent: a multiplication takes several cycles
constexpr int64_t kStride = kLanes * int64_t{sizeof(uint64_t)};
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;  // 2^64 divided by the golden ratio, odd

inline uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * kOdd;
  return state ^ (state >> 29);
}

uint64_t chunk_sum(const uint8_t* data, int64_t size) {
  uint64_t lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<uint64_t>(i + 1) * kOdd;
  int64_t at = 0;
  for (; at + kStride <= size; at += kStride) {
    uint64_t words[kLanes];
    std::memcpy(words, data + at, sizeof words);
    for (int i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  uint64_t sum = static_cast<uint64_t>(size);
  for (; at < size; ++at) sum = mix(sum, data[at]);
  for (const uint64_t lane : lanes) sum = mix(sum, lane);
  return sum;
}

}  // namespace

uint64_t checksum(ThreadPool& pool, const uint8_t* data, int64_t size) {
  const int64_t chunks = (size + kChunk - 1) / kChunk;
  std::vector<uint64_t> sums(static_cast<size_t>(chunks));
  pool.run(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c) {
      sums[static_cast<size_t>(c)] =
          chunk_sum(data + c * kChunk, std::min(kChunk, size - c * kChunk));
    }
  });
  uint64_t sum = static_cast<uint64_t>(size);
  for (const uint64_t each : sums) sum = mix(sum, each);
  return sum;
}

}  // namespace tidemill
