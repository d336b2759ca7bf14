#include "model/residual_stream.h"

#include <algorithm>

namespace tidemill {

void ResidualStream::apply_to(int64_t token, float* scratch) {
  const KernelTable& kernels = context_.kernels;
  const DecoderModel& model = context_.model;
  float* const x = row(token);
  for (const Residual& residual : pending) {
    const float* values = residual.values + token * stride_;
    if (residual.post && !model.norm_sums) {
      context_.apply_norm(context_.norm_of(residual.post, token), values, scratch);
      values = scratch;
    }
    const float scale = model.residual_scale * residual.scale;
    if (scale == 1.0f) {
      kernels.add(x, values, model.hidden);
    } else {
      kernels.add_scaled(x, values, scale, model.hidden);
    }
    if (residual.post && model.norm_sums) context_.apply_norm(context_.norm_of(residual.post, token), x, x);
    if (residual.after != 1.0f) kernels.scale(x, residual.after, model.hidden);
  }
}

void ResidualStream::apply() {
  if (context_.tokens > 0 && !pending.empty()) {
    context_.for_each_token(context_.tokens, [&](int64_t t, int thread) {
      apply_to(t, context_.scratch(thread));
    });
  }
  pending.clear();
}

void ResidualStream::norm_and_pack(const Norm& norm, unsigned acts, float* keep) {
  const int64_t hidden = context_.model.hidden;
  context_.for_each_token(context_.tokens, [&](int64_t t, int thread) {
    const float* x = row(t);
    float* const scratch = context_.scratch(thread);
    apply_to(t, scratch);
    if (norm) {
      context_.apply_norm(context_.norm_of(norm, t), x, scratch);
      x = scratch;
    }
    context_.pack_row(acts, x, hidden, t, context_.acts);
    if (keep != nullptr) std::copy_n(x, hidden, keep + t * hidden);
  });
  pending.clear();
}

}  // namespace tidemill
