// Log-probabilities from the raw logits: a natural-log softmax.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/step.h"

namespace tidemill {

// log(sum exp(logits)), summed in double in the kernels' fixed order.
double log_sum_exp(const KernelTable& kernels, const float* logits, int64_t n);

// The k largest values as (value descending, id ascending), k <= n.
void top_values(const float* logits, int64_t n, int64_t k, int32_t* ids, float* values);

// Makes room for `count` tokens with up to `width` alternatives: NaN and -1 everywhere.
void start_logprobs(Logprobs& out, int64_t count, int64_t width);

// Fills entry i: the log-probability of `token` (NaN when token < 0) and `k` alternatives.
void fill_logprobs(const KernelTable& kernels, const float* logits, int64_t n, int32_t token,
                   int64_t k, Logprobs& out, int64_t i);

}  // namespace tidemill
