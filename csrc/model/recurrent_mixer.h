// Recurrent mixers: projections, convolution, the recurrence token by token, the gate.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "model/residual_stream.h"
#include "model/step_context.h"

namespace tidemill {

class RecurrentBlock {
 public:
  RecurrentBlock(StepContext& context, ResidualStream& stream) : context_(context), stream_(stream) {}

  // While the decoder is built: `run` will be called with this mixer.
  void add(const Recurrent& mixer);
  // Before a step.
  void begin();
  // The mixer of norm(x), into `out`.
  void run(const Recurrent& mixer, const Norm& norm, float* out);

 private:
  struct Layout;
  StatePool& states() const { return context_.cache->states(); }
  // Convolution input `back` tokens before the first of row r; zeros before the beginning of the
  // sequence.
  const float* conv_input_row(const Recurrent& mixer, int64_t r, int64_t back) const;
  void convolve(const Recurrent& mixer, int64_t t);
  // Saves into the state that this run of row r writes the inputs that the convolution of the next
  // tokens needs.
  void save_conv_tail(const Recurrent& mixer, int64_t r, const StatePool::Run& run);
  void scan(const Recurrent& mixer, int64_t r, int64_t head, const StatePool::Run& run);
  // Gates and norms the output and packs it for the last product.
  void gate_row(const Recurrent& mixer, int64_t t);

  StepContext& context_;
  ResidualStream& stream_;
  int64_t mix_width_ = 0;
  Buffer<float> mix_;
  std::vector<float> zero_tail_;                         // zeros
  std::vector<std::vector<StatePool::Run>> state_runs_;  // per row
};

}  // namespace tidemill
