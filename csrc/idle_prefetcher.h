// What threads bring closer while they wait for a loop's end or for the next loop.
//
// A step of few rows waits for memory, and between its loops hardly anybody reads: one thread
// computes a norm, another ended its share early. What the next loop reads is known, so that those
// who wait can ask for it. Asking changes no result, and no address is wrong to ask for.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace tidemill {

class IdlePrefetcher {
 public:
  explicit IdlePrefetcher(int threads) : shares_(static_cast<size_t>(threads)) {}

  // By the caller of loops: nothing is wanted any more.
  void clear();
  // By the caller of loops: `thread` is to bring these bytes, behind what it was given since the
  // last clear(). Returns whether there was room for all of them.
  bool add(int thread, const uint8_t* data, int64_t bytes);

  // By a thread that waits: asks for the next few lines of its share; false when none are left.
  bool prefetch_some(int thread);

 private:
  // Enough for a good start, and a part of what a second-level cache holds.
  static constexpr int64_t kMaxBytes = 128 << 10;
  static constexpr int kMaxParts = 16;

  // Written by the caller while its thread reads: a mixture of two lists asks for lines that nobody
  // needs, no more.
  struct alignas(64) Share {
    std::atomic<uint32_t> generation{0};  // counts the lists
    std::atomic<int> parts{0};
    std::atomic<const uint8_t*> from[kMaxParts] = {}, to[kMaxParts] = {};
    int64_t left = kMaxBytes;       // the caller's

    alignas(64) uint32_t seen_generation = 0;   // the thread's own, from here on
    int part = 0;
    const uint8_t* at = nullptr;     // null: where the part begins
  };
  std::vector<Share> shares_;
};

}  // namespace tidemill
