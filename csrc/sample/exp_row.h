// Passes over a row of logits, written so that the compiler vectorises them. They use the same
// arithmetic on every instruction set.
#pragma once
#include <cstdint>

namespace tidemill {

// True when no value is a NaN or +infinity (a banned token is -infinity).
bool row_usable(const float* x, int64_t n);

struct Range {
  float max, min;  // of the finite values; max is -infinity when there is none
};
Range finite_range(const float* x, int64_t n);

// z[i] = (x[i] - max) / temperature and e[i] = exp(z[i]); -infinity gives 0.
void scaled_exp(const float* x, int64_t n, float max, float temperature, float* z, float* e);

// Sum in double over ascending ids.
double sum_row(const float* e, int64_t n);

}  // namespace tidemill
