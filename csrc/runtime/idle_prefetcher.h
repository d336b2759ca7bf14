// Prefetches memory in threads that wait for a loop to end or for the next loop to start.
//
// A step with few rows is bound by memory latency and bandwidth, and between its loops the bus is
// mostly idle: one thread computes a norm, another finished its share early. What the next loop reads
// is known, so waiting threads prefetch it. Prefetching changes no result, and any address may be
// prefetched.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace tidemill {

class IdlePrefetcher {
 public:
  explicit IdlePrefetcher(int threads) : shares_(static_cast<size_t>(threads)) {}

  // Called by the thread that starts loops: forget all ranges.
  void clear();
  // Called by the thread that starts loops: `thread` shall prefetch these bytes after what it was given
  // since the last clear(). Returns false if they did not all fit.
  bool add(int thread, const uint8_t* data, int64_t bytes);

  // Called by a waiting thread: prefetches the next few lines of its share; false if none are left.
  bool prefetch_some(int thread);

 private:
  // Enough to start a loop, and a fraction of an L2 cache.
  static constexpr int64_t kMaxBytes = 128 << 10;
  static constexpr int kMaxParts = 16;

  // The caller writes while the thread reads. If the thread sees a mixture of two lists, it only
  // prefetches lines that nobody needs.
  struct alignas(64) Share {
    std::atomic<uint32_t> generation{0};  // incremented by clear()
    std::atomic<int> parts{0};
    std::atomic<const uint8_t*> from[kMaxParts] = {}, to[kMaxParts] = {};
    int64_t left = kMaxBytes;       // used by the caller only

    alignas(64) uint32_t seen_generation = 0;   // from here on used by the thread only
    int part = 0;
    const uint8_t* at = nullptr;     // null: at the beginning of the part
  };
  std::vector<Share> shares_;
};

}  // namespace tidemill
