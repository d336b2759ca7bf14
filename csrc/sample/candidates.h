// The most likely next tokens of a beam: candidates of a beam search.
#pragma once
#include <cstdint>

#include "kernels/kernels.h"
#include "runtime/step.h"
#include "sample/sampler.h"

namespace tidemill {

// Makes space for `rows` rows of up to `width` candidates: -1 and NaN everywhere.
void start_candidates(Candidates& out, int64_t rows, int64_t width);

// Fills the row's candidates, best first, with scores: the log-softmax of the raw logits, to which mask,
// bias and penalties are applied without normalizing again (as transformers' beam search does). Ties go
// to the lowest id; what is banned is no candidate. `work` [n] is scratch memory.
//
// Returns the best candidate, kNoTokenLeft or kLogitsNotFinite.
int32_t fill_candidates(const KernelTable& kernels, Sampler& sampler, const SamplingInput& in,
                        const SampleRow& row, const float* logits, int64_t n, float* work,
                        Candidates& out);

}  // namespace tidemill
