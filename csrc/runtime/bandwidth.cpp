#include "runtime/bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace tidemill {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint64_t, Free>;

// On huge pages where available, like weights and the KV cache; with small pages the page walks would
// be measured too.
Buffer make_buffer(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* p = std::aligned_alloc(kHugePage, rounded);
  if (p == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(p, rounded, MADV_HUGEPAGE);
#endif
  std::memset(p, 1, bytes);  // first touched by its reader, for NUMA locality
  return Buffer(static_cast<uint64_t*>(p));
}

// Sixteen independent sums: the loop vectorises and is bound by memory, not by the latency of
// additions.
uint64_t read_all(const uint64_t* data, std::size_t words) {
  uint64_t sums[16] = {};
  for (std::size_t i = 0; i + 16 <= words; i += 16)
    for (int j = 0; j < 16; ++j) sums[j] += data[i + j];
  uint64_t total = 0;
  for (uint64_t s : sums) total += s;
  return total;
}

}  // namespace

double measure_read_bandwidth(int threads, std::size_t bytes_per_thread, int rounds) {
  const std::size_t bytes = std::max<std::size_t>(bytes_per_thread & ~std::size_t{127}, 128);
  std::atomic<int> waiting{0}, finished{0}, round{-1};
  std::atomic<uint64_t> sink{0};
  std::vector<std::thread> pool;
  std::atomic<bool> failed{false};
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      Buffer buffer;
      try {
        buffer = make_buffer(bytes);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      waiting.fetch_add(1);
      for (int r = 0; r < rounds; ++r) {
        while (round.load(std::memory_order_acquire) < r) std::this_thread::yield();
        if (buffer) sink.fetch_add(read_all(buffer.get(), bytes / 8));
        finished.fetch_add(1, std::memory_order_release);
      }
    });
  }
  while (waiting.load() < threads) std::this_thread::yield();
  double best = 0;
  for (int r = 0; r < rounds; ++r) {
    const auto start = std::chrono::steady_clock::now();
    round.store(r, std::memory_order_release);
    // Sleeps instead of spinning: with one reader per core, a spinning clock would take time from one
    // of them.
    while (finished.load(std::memory_order_acquire) < (r + 1) * threads)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(bytes) * threads / took.count());
  }
  for (auto& t : pool) t.join();
  if (failed) throw std::bad_alloc();
  return best;
}

}  // namespace tidemill
