#include "sample/exp_row.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "sample/clones.h"

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
float max_of(const float* x, int64_t n) {
  float lanes[16];
  for (float& lane : lanes) lane = -kInfinity;
  const int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  float max = -kInfinity;
  for (int64_t i = whole; i < n; ++i) max = x[i] > max ? x[i] : max;
  for (const float lane : lanes) max = lane > max ? lane : max;
  return max;
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

TIDEMILL_CLONES
double sum_row(const float* e, int64_t n) {
  double lanes[8] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(e[i + l]);
  }
  for (int64_t i = whole; i < n; ++i) lanes[i - whole] += static_cast<double>(e[i]);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

TIDEMILL_CLONES
double dot_row(const float* e, const float* z, int64_t n) {
  double lanes[8] = {};
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int l = 0; l < 8; ++l) {
      const float value = e[i + l] > 0.0f ? z[i + l] : 0.0f;
      lanes[l] += static_cast<double>(e[i + l]) * static_cast<double>(value);
    }
  }
  for (int64_t i = whole; i < n; ++i) {
    const float value = e[i] > 0.0f ? z[i] : 0.0f;
    lanes[i - whole] += static_cast<double>(e[i]) * static_cast<double>(value);
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

namespace {

// Sum of the values above -infinity minus `shift`, squared if wanted, in eight lanes.
template <bool kSquared>
inline double sum_shifted(const float* x, int64_t n, double shift) {
  double lanes[8] = {};
  for (int64_t i = 0; i < n; i += 8) {
    const int count = n - i < 8 ? static_cast<int>(n - i) : 8;
    for (int l = 0; l < count; ++l) {
      const double d = x[i + l] > -kInfinity ? static_cast<double>(x[i + l]) - shift : 0.0;
      lanes[l] += kSquared ? d * d : d;
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

TIDEMILL_CLONES
Moments moments(const float* x, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] > -kInfinity;
  if (count == 0) return {0, 0.0, 0.0};
  const double mean = sum_shifted<false>(x, n, 0.0) / static_cast<double>(count);
  return {count, mean, sum_shifted<true>(x, n, mean) / static_cast<double>(count)};
}

TIDEMILL_CLONES
void smooth_row(float* z, float* e, int64_t n, float factor, float curve) {
  const float k = (3.0f - curve) / 2.0f * factor, s = (curve - 1.0f) / 2.0f * factor;
  for (int64_t i = 0; i < n; ++i) {
    const float t = z[i] < -1e6f ? -1e6f : z[i];
    const float smoothed = t * t * (s * t - k);
    z[i] = z[i] == -kInfinity ? z[i] : smoothed;
  }
  scaled_exp(z, n, 0.0f, 1.0f, z, e);
}

namespace {

constexpr int64_t kBlock = 256;

TIDEMILL_CLONES
bool any_above(const float* z, int64_t n, float floor) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) any |= z[i] >= floor;
  return any != 0;
}

TIDEMILL_CLONES
bool any_equal(const float* x, int64_t n, float value) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) any |= x[i] == value;
  return any != 0;
}

}  // namespace

int64_t gather_above(const float* z, int64_t n, float floor, int32_t* ids) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    if (!any_above(z + begin, end - begin, floor)) continue;
    for (int64_t i = begin; i < end; ++i) {
      ids[count] = static_cast<int32_t>(i);
      count += z[i] >= floor;
    }
  }
  return count;
}

int64_t find_first(const float* x, int64_t n, float value) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    if (!any_equal(x + begin, end - begin, value)) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (x[i] == value) return i;
    }
  }
  return n;
}

}  // namespace tidemill
