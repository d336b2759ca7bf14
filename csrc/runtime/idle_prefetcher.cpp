#include "runtime/idle_prefetcher.h"

#include <algorithm>

namespace tidemill {

namespace {

constexpr int kLinesPerCall = 4;
constexpr int64_t kLine = 64;

// Into L2. Inline assembly, because GCC 12 removes calls to functions that only prefetch.
inline void prefetch(const uint8_t* at) {
#if defined(__x86_64__) || defined(__i386__)
  asm volatile("prefetcht1 %0" : : "m"(*at));
#elif defined(__aarch64__)
  asm volatile("prfm pldl2keep, %0" : : "Q"(*at));
#else
  static_cast<void>(at);
#endif
}

}  // namespace

void IdlePrefetcher::clear() {
  for (Share& share : shares_) {
    share.parts.store(0, std::memory_order_relaxed);
    share.generation.store(share.generation.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    share.left = kMaxBytes;
  }
}

bool IdlePrefetcher::add(int thread, const uint8_t* data, int64_t bytes) {
  Share& share = shares_[static_cast<size_t>(thread)];
  const int part = share.parts.load(std::memory_order_relaxed);
  const int64_t taken = std::min(bytes, share.left);
  if (part == kMaxParts || taken <= 0) return false;
  share.from[part].store(data, std::memory_order_relaxed);
  share.to[part].store(data + taken, std::memory_order_relaxed);
  share.parts.store(part + 1, std::memory_order_release);
  share.left -= taken;
  return taken == bytes;
}

bool IdlePrefetcher::prefetch_some(int thread) {
  Share& share = shares_[static_cast<size_t>(thread)];
  const uint32_t generation = share.generation.load(std::memory_order_acquire);
  if (generation != share.seen_generation) {
    share.seen_generation = generation;
    share.part = 0;
    share.at = nullptr;
  }
  if (share.part >= share.parts.load(std::memory_order_acquire)) return false;
  if (share.at == nullptr) share.at = share.from[share.part].load(std::memory_order_relaxed);
  const uint8_t* const to = share.to[share.part].load(std::memory_order_relaxed);
  for (int i = 0; i < kLinesPerCall && share.at < to; ++i, share.at += kLine) prefetch(share.at);
  if (share.at >= to) {
    ++share.part;
    share.at = nullptr;
  }
  return true;
}

}  // namespace tidemill
