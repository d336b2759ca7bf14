// Passes over a row of logits, written for auto-vectorisation, with the same arithmetic on every
// instruction set.
#pragma once
#include <cstdint>

namespace tidemill {

// True if no value is NaN or +infinity (a banned token is -infinity).
bool row_usable(const float* x, int64_t n);

// The largest value.
float max_of(const float* x, int64_t n);

// z[i] = (x[i] - max) / temperature and e[i] = exp(z[i]); -infinity gives 0.
void scaled_exp(const float* x, int64_t n, float max, float temperature, float* z, float* e);

// Sum in double: eight lanes over ascending ids, then the lanes.
double sum_row(const float* e, int64_t n);

// Sum of e * z over the tokens with e > 0, in the same order.
double dot_row(const float* e, const float* z, int64_t n);

// Number, mean and population variance of the values above -infinity, in the same order.
struct Moments {
  int64_t count;
  double mean, variance;
};
int64_t count_allowed(const float* x, int64_t n);
Moments moments(const float* x, int64_t n);

// Quadratic smoothing in place of z, and e = exp(z): z -> -k factor z^2 + s factor z^3, with
// k = (3 - curve) / 2 and s = (curve - 1) / 2; -infinity stays.
void smooth_row(float* z, float* e, int64_t n, float factor, float curve);

// Writes ids with z at or above `floor`, ascending, into `ids` (room for n); returns their number.
int64_t gather_above(const float* z, int64_t n, float floor, int32_t* ids);

// The same for the ids with low < |z - center| <= high.
int64_t gather_between(const float* z, int64_t n, float center, float low, float high, int32_t* ids);

// Sum of e over the tokens with |z - center| <= distance, in eight lanes.
double sum_within(const float* z, const float* e, int64_t n, float center, float distance);

// The same for several distances, ascending: only nearly, in single precision; and numbers of tokens,
// exact below 2^24.
constexpr int kDistances = 7;
void rough_sums_within(const float* z, const float* e, int64_t n, float center,
                       const float* distances, float* sums);
void counts_within(const float* z, int64_t n, float center, const float* distances, float* counts);

// Set e to 0 where |z - center| > distance; where e < least; where logits - max < -sigmas.
void drop_far(float* e, const float* z, int64_t n, float center, float distance);
void drop_light(float* e, int64_t n, double least);
void drop_low(float* e, const float* logits, int64_t n, float max, double sigmas);

// The lowest id whose value equals `value`, or n.
int64_t find_first(const float* x, int64_t n, float value);

}  // namespace tidemill
