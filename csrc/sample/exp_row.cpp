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

// Eight lanes, which compilers split as the instruction set demands.
using F8 = float __attribute__((vector_size(32)));
using F16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using I8 = int32_t __attribute__((vector_size(32)));
using D8 = double __attribute__((vector_size(64)));

double sum_of(const D8& lanes) {
  double sum = 0.0;
  for (int l = 0; l < 8; ++l) sum += lanes[l];
  return sum;
}
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
  D8 lanes = {};
  const F8 least = F8{} - 88.0f;  // where e is 0, z may be -infinity; elsewhere it is not so small
  for (int64_t i = 0; i < n; i += 8) {
    F8 weight = {}, value = {};
    if (n - i >= 8) {
      std::memcpy(&weight, e + i, sizeof(F8));
      std::memcpy(&value, z + i, sizeof(F8));
    } else {
      std::memcpy(&weight, e + i, static_cast<size_t>(n - i) * sizeof(float));
      std::memcpy(&value, z + i, static_cast<size_t>(n - i) * sizeof(float));
    }
    value = value < least ? least : value;
    lanes += __builtin_convertvector(weight, D8) * __builtin_convertvector(value, D8);
  }
  return sum_of(lanes);
}

TIDEMILL_CLONES
int64_t count_allowed(const float* x, int64_t n) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] > -kInfinity ? 1 : 0;
  return count;
}

// Sums over the values above -infinity, in eight lanes.
TIDEMILL_CLONES
double sum_allowed(const float* x, int64_t n) {
  D8 lanes = {};
  const F8 zero = {}, banned = zero - kInfinity;
  for (int64_t i = 0; i < n; i += 8) {
    F8 value = {};
    if (n - i >= 8) {
      std::memcpy(&value, x + i, sizeof(F8));
    } else {
      std::memcpy(&value, x + i, static_cast<size_t>(n - i) * sizeof(float));
    }
    lanes += __builtin_convertvector(value == banned ? zero : value, D8);
  }
  return sum_of(lanes);
}

TIDEMILL_CLONES
double squared_distances(const float* x, int64_t n, double mean) {
  D8 lanes = {};
  const F8 zero = {}, one = zero + 1.0f, banned = zero - kInfinity;
  for (int64_t i = 0; i < n; i += 8) {
    F8 value = banned;
    if (n - i >= 8) {
      std::memcpy(&value, x + i, sizeof(F8));
    } else {
      std::memcpy(&value, x + i, static_cast<size_t>(n - i) * sizeof(float));
    }
    const D8 counts = __builtin_convertvector(value == banned ? zero : one, D8);
    const D8 d = (__builtin_convertvector(value == banned ? zero : value, D8) - mean) * counts;
    lanes += d * d;
  }
  return sum_of(lanes);
}

Moments moments(const float* x, int64_t n) {
  const int64_t count = count_allowed(x, n);
  if (count == 0) return {0, 0.0, 0.0};
  const double mean = sum_allowed(x, n) / static_cast<double>(count);
  return {count, mean, squared_distances(x, n, mean) / static_cast<double>(count)};
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

namespace {

TIDEMILL_CLONES
bool any_between(const float* z, int64_t n, float center, float low, float high) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float distance = std::fabs(z[i] - center);
    any |= static_cast<int>(distance > low) & static_cast<int>(distance <= high);
  }
  return any != 0;
}

}  // namespace

int64_t gather_between(const float* z, int64_t n, float center, float low, float high, int32_t* ids) {
  constexpr int64_t kSmall = 64;
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kSmall) {
    const int64_t end = begin + kSmall < n ? begin + kSmall : n;
    if (!any_between(z + begin, end - begin, center, low, high)) continue;
    for (int64_t i = begin; i < end; ++i) {
      const float distance = std::fabs(z[i] - center);
      ids[count] = static_cast<int32_t>(i);
      count += distance > low && distance <= high;
    }
  }
  return count;
}

TIDEMILL_CLONES
double sum_within(const float* z, const float* e, int64_t n, float center, float distance) {
  D8 lanes = {};
  const F8 zero = {};
  const I8 magnitude = I8{} + 0x7fffffff;
  for (int64_t i = 0; i < n; i += 8) {
    F8 value = {}, at = {};
    if (n - i >= 8) {
      std::memcpy(&value, e + i, sizeof(F8));
      std::memcpy(&at, z + i, sizeof(F8));
    } else {
      std::memcpy(&value, e + i, static_cast<size_t>(n - i) * sizeof(float));
      std::memcpy(&at, z + i, static_cast<size_t>(n - i) * sizeof(float));
    }
    const F8 far = reinterpret_cast<F8>(reinterpret_cast<I8>(at - center) & magnitude);
    lanes += __builtin_convertvector(far <= zero + distance ? value : zero, D8);
  }
  return sum_of(lanes);
}

TIDEMILL_CLONES
void rough_sums_within(const float* z, const float* e, int64_t n, float center,
                       const float* distances, float* sums) {
  F16 lanes[kDistances] = {}, bounds[kDistances];
  for (int k = 0; k < kDistances; ++k) bounds[k] = F16{} + distances[k];
  const F16 zero = {};
  const I16 magnitude = I16{} + 0x7fffffff;
  const int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16) {
    F16 value, at;
    std::memcpy(&value, e + i, sizeof(F16));
    std::memcpy(&at, z + i, sizeof(F16));
    const F16 far = reinterpret_cast<F16>(reinterpret_cast<I16>(at - center) & magnitude);
    for (int k = 0; k < kDistances; ++k) lanes[k] += far <= bounds[k] ? value : zero;
  }
  for (int k = 0; k < kDistances; ++k) {
    sums[k] = 0.0f;
    for (int l = 0; l < 16; ++l) sums[k] += lanes[k][l];
    for (int64_t i = whole; i < n; ++i) sums[k] += std::fabs(z[i] - center) <= distances[k] ? e[i] : 0.0f;
  }
}

TIDEMILL_CLONES
void counts_within(const float* z, int64_t n, float center, const float* distances,
                   float* counts) {
  for (int k = 0; k < kDistances; ++k) {
    const float most = distances[k];
    int32_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += std::fabs(z[i] - center) <= most ? 1 : 0;
    counts[k] = static_cast<float>(count);
  }
}

TIDEMILL_CLONES
void drop_far(float* e, const float* z, int64_t n, float center, float distance) {
  for (int64_t i = 0; i < n; ++i) e[i] = std::fabs(z[i] - center) <= distance ? e[i] : 0.0f;
}

// A float is below `least` if and only if it is below the float that `least` is rounded up to.
TIDEMILL_CLONES
void drop_light(float* e, int64_t n, double least) {
  auto bound = static_cast<float>(least);
  if (static_cast<double>(bound) < least) bound = std::nextafter(bound, kInfinity);
  for (int64_t i = 0; i < n; ++i) e[i] = e[i] >= bound ? e[i] : 0.0f;
}

TIDEMILL_CLONES
void drop_low(float* e, const float* logits, int64_t n, float max, double sigmas) {
  auto bound = static_cast<float>(-sigmas);
  if (static_cast<double>(bound) < -sigmas) bound = std::nextafter(bound, kInfinity);
  for (int64_t i = 0; i < n; ++i) e[i] = logits[i] - max >= bound ? e[i] : 0.0f;
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
