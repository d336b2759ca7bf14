// Validates a step before it runs: afterwards nothing in it can make a kernel access foreign memory.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/cache.h"
#include "runtime/step.h"

namespace tidemill {

struct StepLimits {
  int64_t vocab;
  int64_t max_positions;
  int64_t layers, hidden;
  int64_t types;  // number of token types, 0: none
  bool causal;
  const KvCache& cache;
  // Rows of the previously submitted step that sample; null if there is none.
  const std::vector<uint8_t>* previous_samples;
};

// Error (Internal) naming the field: an invalid step is a defect of the caller.
void check_step(const StepInput& step, const StepLimits& limits);

}  // namespace tidemill
