#include "model/step_context.h"

namespace tidemill {

void StepContext::finish() {
  scratch_width_ = round_up(std::max(scratch_width_, width_), 16);
  scratch_.ensure(scratch_width_ * pool.threads());
  acts.set_width(kernels, width_);
}

void StepContext::begin(const StepInput& input, KvCache& kv) {
  step = &input;
  cache = &kv;
  token_adapters_.clear();
  adapters = nullptr;
  if (!input.held_adapters.empty()) {
    for (int64_t r = 0; r < input.rows(); ++r) {
      const auto i = static_cast<size_t>(r);
      for (int64_t t = input.row_start[i]; t < input.row_start[i + 1]; ++t) {
        token_adapters_.add(input.held_adapters[i].get());
      }
    }
    adapters = token_adapters_.groups().empty() ? nullptr : &token_adapters_;
  }
  acts.adapters = adapters;
  acts.ensure(types_, input.tokens());
  positions.resize(static_cast<size_t>(input.tokens()));
  row_of.resize(static_cast<size_t>(input.tokens()));
  for (int64_t r = 0; r < input.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    for (int64_t t = input.row_start[i]; t < input.row_start[i + 1]; ++t) {
      row_of[static_cast<size_t>(t)] = r;
      positions[static_cast<size_t>(t)] = input.context_len[i] + t - input.row_start[i];
    }
  }
}

void StepContext::gather_packed(Acts& rows, ActType act, int64_t count, Bounds bounds, int64_t k) {
  // Rows are arrays of groups of at most 512 values, and padding at the end.
  const int64_t bytes = kernels.act_row_bytes(act, 1024) - kernels.act_row_bytes(act, 512);
  for (int64_t& bound : bounds) bound = bound * bytes / 512;
  bounds.back() = kernels.act_row_bytes(act, k);
  const int type = static_cast<int>(act);
  group->gather(pool, rows.row(type, 0), rows.stride[type], count, bounds);
}

void StepContext::apply_norm(const Norm& norm, const float* x, float* out) const {
  if (model.layer_norms) {
    kernels.layer_norm(x, norm.weight, norm.bias, model.norm_eps, model.hidden, out);
  } else {
    kernels.rms_norm(x, norm.weight, model.norm_eps, model.hidden, out);
  }
}

}  // namespace tidemill
