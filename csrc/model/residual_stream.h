// The residual stream x [tokens, hidden], and the blocks' outputs that are not added to it yet.
//
// An output is added in the pass that computes the next norm and packs its result, so that x is read and
// written once per block. When this happens changes no bit.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "model/step_context.h"

namespace tidemill {

// A block's output that has not been added to x yet.
struct Residual {
  const float* values;  // [tokens, ResidualStream::stride()]
  Norm post;
  float scale = 1;
  float after = 1;  // factor of x after the addition
};

class ResidualStream {
 public:
  explicit ResidualStream(StepContext& context)
      : context_(context), stride_(row_stride(context.model.hidden)) {}

  void begin(int64_t tokens) {
    x_.ensure(tokens * context_.model.hidden);
    outputs_[0].ensure(tokens * stride_);
    pending.clear();
  }
  float* row(int64_t token) const { return x_.data() + token * context_.model.hidden; }
  int64_t stride() const { return stride_; }
  // Where blocks write: [tokens, stride()]. The second is for a layer with two blocks side by side.
  float* output() const { return outputs_[0].data(); }
  float* second_output() { return outputs_[1].ensure(context_.tokens * stride_); }

  std::vector<Residual> pending;  // in the order of their addition

  // Adds what is pending.
  void apply();
  // Adds what is pending, applies the norm (none: null) and packs the result in the context's acts;
  // `keep` [tokens, hidden] also receives it as float.
  void norm_and_pack(const Norm& norm, unsigned acts, float* keep = nullptr);

 private:
  void apply_to(int64_t token, float* scratch);

  StepContext& context_;
  int64_t stride_;
  Buffer<float> x_, outputs_[2];
};

}  // namespace tidemill
