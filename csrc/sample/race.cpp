#include "sample/race.h"

#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include <limits>

#include "sample/portable_math.h"

namespace tidemill {

namespace {

constexpr int64_t kLanes = 16;  // Philox calls computed side by side
constexpr double kLeastTime = 1.0 / 8589934592.0;  // 2^-33

// Token 64 g + 16 w + l has word w of call 16 g + l.
uint32_t call_of(int64_t token) {
  return static_cast<uint32_t>(token / kRaceGroup * kLanes + token % kLanes);
}

uint32_t word_of(const RandomKey& key, Draw draw, int64_t token) {
  return random_words(key, draw, call_of(token))[static_cast<size_t>(token / kLanes % 4)];
}

struct Leader {
  double time = std::numeric_limits<double>::infinity();
  int64_t token = -1;

  void consider(double t, int64_t candidate) {
    if (t < time || (t == time && candidate < token)) {
      time = t;
      token = candidate;
    }
  }
};

double time_of(const RandomKey& key, int64_t token, uint32_t high) {
  if (high == 0xffffffffu) return kLeastTime;
  const uint64_t k = static_cast<uint64_t>(high) << 20 | word_of(key, Draw::kRaceLow, token) >> 12;
  return -portable_log((static_cast<double>(k) + 0.5) * (1.0 / 4503599627370496.0));
}

// next_group(e, group, groups, bound, key, words) gives the first group from `group` on in which a token
// may beat the leader, with its high words; `groups` if there is none. A token with the numbers u and e
// cannot if 1 - u > e * bound, since -log(u) >= 1 - u; the 32 high bits give a lower bound of 1 - u.
// `bound` is rounded up by the caller. It is compiled for each instruction set, with the same results.
using NextGroup = int64_t (*)(const float*, int64_t, int64_t, float, const RandomKey&, uint32_t*);

namespace plain {
#define TIDEMILL_TARGET
using V = uint64_t;
constexpr int kWidth = 1;
inline V load(const uint64_t* p) { return *p; }
inline void store(uint64_t* p, V v) { *p = v; }
inline V splat(uint32_t x) { return x; }
inline V xor_of(V a, V b) { return a ^ b; }
inline V shifted(V v) { return v >> 32; }
inline V mul(V a, V b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
#include "sample/next_group.inl"
#undef TIDEMILL_TARGET
}  // namespace plain

#ifdef __x86_64__
namespace avx2 {
#define TIDEMILL_TARGET __attribute__((target("avx2")))
using V = __m256i;
constexpr int kWidth = 4;
TIDEMILL_TARGET inline V load(const uint64_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const V*>(p));
}
TIDEMILL_TARGET inline void store(uint64_t* p, V v) {
  _mm256_storeu_si256(reinterpret_cast<V*>(p), v);
}
TIDEMILL_TARGET inline V splat(uint32_t x) {
  return _mm256_set1_epi64x(static_cast<int64_t>(x));
}
TIDEMILL_TARGET inline V xor_of(V a, V b) { return _mm256_xor_si256(a, b); }
TIDEMILL_TARGET inline V shifted(V v) { return _mm256_srli_epi64(v, 32); }
TIDEMILL_TARGET inline V mul(V a, V b) { return _mm256_mul_epu32(a, b); }
#include "sample/next_group.inl"
#undef TIDEMILL_TARGET
}  // namespace avx2

namespace avx512 {
#define TIDEMILL_TARGET __attribute__((target("avx512f")))
using V = __m512i;
constexpr int kWidth = 8;
TIDEMILL_TARGET inline V load(const uint64_t* p) { return _mm512_loadu_si512(p); }
TIDEMILL_TARGET inline void store(uint64_t* p, V v) { _mm512_storeu_si512(p, v); }
TIDEMILL_TARGET inline V splat(uint32_t x) {
  return _mm512_set1_epi64(static_cast<int64_t>(x));
}
TIDEMILL_TARGET inline V xor_of(V a, V b) { return _mm512_xor_si512(a, b); }
TIDEMILL_TARGET inline V shifted(V v) { return _mm512_srli_epi64(v, 32); }
TIDEMILL_TARGET inline V mul(V a, V b) { return _mm512_mul_epu32(a, b); }
#include "sample/next_group.inl"
#undef TIDEMILL_TARGET
}  // namespace avx512
#endif

NextGroup select_next_group() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return avx512::next_group;
  if (__builtin_cpu_supports("avx2")) return avx2::next_group;
#endif
  return plain::next_group;
}

}  // namespace

double race_time(const RandomKey& key, int64_t token) {
  return time_of(key, token, word_of(key, Draw::kRaceHigh, token));
}

int32_t race(const float* e, int64_t n, int64_t top, const RandomKey& key) {
  Leader leader;
  if (e[top] > 0.0f) leader.consider(race_time(key, top) / static_cast<double>(e[top]), top);
  static const NextGroup next_group = select_next_group();
  const int64_t groups = (n + kRaceGroup - 1) / kRaceGroup;
  uint32_t words[kRaceGroup];
  for (int64_t group = 0;; ++group) {
    const auto bound = static_cast<float>(leader.time * (1.0 + 1e-5));
    group = next_group(e, group, groups, bound, key, words);
    if (group == groups) break;
    for (int64_t i = 0; i < kRaceGroup; ++i) {
      const int64_t token = group * kRaceGroup + i;
      const double weight = e[token];
      const double least = static_cast<double>(~words[i]) * (1.0 / 4294967296.0);
      if (weight == 0.0 || least > weight * leader.time * (1.0 + 1e-5)) continue;
      leader.consider(time_of(key, token, words[i]) / weight, token);
    }
  }
  return static_cast<int32_t>(leader.token);
}

}  // namespace tidemill
