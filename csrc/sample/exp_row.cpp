#include "sample/exp_row.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// Wider vectors where the machine has them; without contraction the results are the same.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TIDEMILL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TIDEMILL_CLONES
#endif

namespace tidemill {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kInfinityBits = 0x7f800000u;
}  // namespace

TIDEMILL_CLONES
bool row_usable(const float* x, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    // As integers, +inf and the positive NaNs are the largest positive values; a negative NaN is
    // above -inf.
    bad |= static_cast<uint32_t>((bits & 0x7fffffffu) > kInfinityBits) |
           static_cast<uint32_t>(bits == kInfinityBits);
  }
  return bad == 0;
}

TIDEMILL_CLONES
Range finite_range(const float* x, int64_t n) {
  float max = -kInfinity, min = kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    const float low = x[i] == -kInfinity ? kInfinity : x[i];
    max = x[i] > max ? x[i] : max;
    min = low < min ? low : min;
  }
  return {max, min};
}

// exp by range reduction to [-ln2/2, ln2/2] and a degree-6 Taylor-like polynomial (relative error
// below 3e-7), scaled by building the power of two.
TIDEMILL_CLONES
void scaled_exp(const float* x, int64_t n, float max, float temperature, float* z, float* e) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = (x[i] - max) / temperature;
    z[i] = scaled;
    const float t = scaled < -87.0f ? -87.0f : scaled;
    const float shifted = t * 1.44269504f + 12582912.0f;  // rounds to an integer
    const float whole = shifted - 12582912.0f;
    const float r = (t - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t exponent = static_cast<int32_t>(whole) + 127;
    const float power = std::bit_cast<float>(exponent << 23);
    e[i] = scaled < -87.0f ? 0.0f : p * power;
  }
}

double sum_row(const float* e, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(e[i]);
  return sum;
}

}  // namespace tidemill
