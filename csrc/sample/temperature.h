// Dynamic temperature: between temperature - range and temperature + range by the entropy of the
// distribution at temperature 1 (llama.cpp's).
#pragma once
#include <cstdint>

#include "sample/exp_row.h"
#include "sample/portable_math.h"

namespace tidemill {

// x^y for x in [0, 1] and y >= 0.
inline double portable_power(double x, double y) {
  if (x <= 0.0) return y == 0.0 ? 1.0 : 0.0;
  return portable_exp(y * portable_log(x));
}

// Entropy in nats of weights e = exp(z) with the sum `total`.
inline double entropy(const float* z, const float* e, int64_t n, double total) {
  return portable_log(total) - dot_row(e, z, n) / total;
}

// z and e are scratch memory [n]; `max` is the largest logit.
inline float dynamic_temperature(const float* logits, int64_t n, float max, float temperature,
                                 float range, float exponent, float* z, float* e) {
  constexpr double kLeast = 1e-6;
  const int64_t count = count_allowed(logits, n);
  if (count < 2) return temperature;
  scaled_exp(logits, n, max, 1.0f, z, e);
  double share = entropy(z, e, n, sum_row(e, n)) / portable_log(static_cast<double>(count));
  share = share > 1.0 ? 1.0 : share;
  const double middle = temperature, high = middle + static_cast<double>(range);
  double low = middle - static_cast<double>(range);
  low = low > 0.0 ? low : 0.0;
  const double found = low + (high - low) * portable_power(share, exponent);
  return static_cast<float>(found > kLeast ? found : kLeast);
}

}  // namespace tidemill
