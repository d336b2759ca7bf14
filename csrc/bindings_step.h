// Conversions between backends/base.py's step dataclasses and step.h.
#pragma once
#include <nanobind/nanobind.h>

#include "runtime/step.h"

namespace tidemill {

// Copies a StepInputs object. Error (Internal) naming the field whose type is wrong.
StepInput read_step(nanobind::handle inputs);
SamplingInput read_sampling(nanobind::handle sampling);
// (sampled, logprobs or None, targets or None, logits or None, seconds); logprobs and targets are
// (chosen, top_ids, top_values).
nanobind::tuple write_output(StepOutput&& output, int64_t vocab);
// float32 [layers, tokens, hidden], or None.
nanobind::object write_layer_hidden(StepOutput& output);
// (ids, scores, logprobs), or None.
nanobind::object write_candidates(StepOutput& output);

}  // namespace tidemill
