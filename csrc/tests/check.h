// Shared by the kernel checks: random data, aligned buffers, failure reporting.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels/kernels.h"

namespace tidemill::check {

// SplitMix64; uniform() is in [-1, 1), normal() roughly Gaussian.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  float uniform() { return float(int64_t(next() >> 40)) / 8388608.0f - 1.0f; }
  float normal() { return (uniform() + uniform() + uniform() + uniform()) * 0.866f; }
  int64_t below(int64_t n) { return int64_t(next() % uint64_t(n)); }
};

// 64-byte aligned bytes, filled with a pattern that reads as NaN in every float type.
struct Buffer {
  uint8_t* data = nullptr;
  size_t size = 0;
  explicit Buffer(int64_t bytes) : size(size_t(bytes + 63) / 64 * 64) {
    data = static_cast<uint8_t*>(std::aligned_alloc(64, size ? size : 64));
#if defined(__linux__)
    if (size > (size_t(4) << 20)) {  // huge pages, from the first page boundary on
      const size_t skip = size_t(4096) - reinterpret_cast<uintptr_t>(data) % 4096;
      madvise(data + skip, size - skip, MADV_HUGEPAGE);
    }
#endif
    poison();
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void poison() { std::memset(data, 0xff, size); }
  float* floats() { return reinterpret_cast<float*>(data); }
};

extern int failures;
void fail(const char* isa, const char* what, const char* format, ...);

inline float bf16_value(uint16_t h) {
  const uint32_t u = uint32_t(h) << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
inline uint16_t bf16_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline float bf16_rounded(float x) { return bf16_value(bf16_bits(x)); }

inline const char* name(WeightType t) {
  const char* names[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "I8", "MXFP4", "IQ4_NL",
                         "Q4_1", "Q5_0", "Q5_1"};
  return names[int(t)];
}
inline const char* name(KvType t) {
  const char* names[] = {"F32", "BF16", "I8", "I4"};
  return names[int(t)];
}

void check_elementwise(const KernelTable& t);
void check_gemm(const KernelTable& t);
void check_attention(const KernelTable& t);
void check_low_rank(const KernelTable& t);
void check_recurrent(const KernelTable& t);
void bench(const KernelTable& t, const char* filter, int threads);

}  // namespace tidemill::check
