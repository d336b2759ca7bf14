// Mixtures of experts. Rows are grouped by expert so that an expert's weights are read once; a row's
// arithmetic is the same as if it were alone.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "model/feed_forward.h"
#include "model/residual_stream.h"
#include "model/step_context.h"

namespace tidemill {

class ExpertsBlock {
 public:
  // `feed_forward` computes shared experts; experts use its buffers.
  ExpertsBlock(StepContext& context, ResidualStream& stream, FeedForwardBlock& feed_forward)
      : context_(context), stream_(stream), feed_forward_(feed_forward) {}

  // While the decoder is built: `run` will be called with this mixture.
  void add(const Experts& moe);
  void finish() { slot_acts_.set_width(context_.kernels, context_.width()); }
  // The mixture of norm(x), into `out`. A shared expert's last product prefetches `following`.
  void run(const Experts& moe, const Norm& norm, const LinearList& following, float* out);

 private:
  // Router, experts and shared expert read the same input.
  void run_common_norm(const Experts& moe, const Norm& norm, const LinearList& following, float* out);
  // They have separate input norms; `norm` is the shared expert's.
  void run_own_norms(const Experts& moe, const Norm& norm, const LinearList& following, float* out);
  // Chooses experts for the tokens whose rows are packed in the context's acts.
  void choose(const Experts& moe);
  void run_chosen(const Experts& moe, float* out);
  void run_chunk(const Experts& moe, int64_t first, int64_t count, float* out);
  // Assigns a slot to every (token, rank), grouped by expert and in token order.
  void assign_slots(const Experts& moe, int64_t first, int64_t count);
  // Packs each slot's input.
  void fill_slots(const Experts& moe);
  void run_slots(const Experts& moe);
  float* shared_output() { return shared_out_.ensure(context_.tokens * stream_.stride()); }

  StepContext& context_;
  ResidualStream& stream_;
  FeedForwardBlock& feed_forward_;
  Buffer<float> scores_, slot_out_, shared_out_, shared_gate_, normed_;
  std::vector<int32_t> chosen_;  // [tokens, top_k]
  std::vector<float> shares_;    // [tokens, top_k]
  // A slot is one (token, expert) pair; slots are sorted by expert.
  RowAdapters slot_adapters_;
  Acts slot_acts_;
  std::vector<int64_t> slot_of_;  // [tokens, top_k]
  std::vector<int64_t> slot_token_;
  std::vector<float> slot_share_;
  std::vector<int64_t> expert_slot_;  // first slot of each expert, then the total
  std::vector<Product> products_;
  std::vector<std::vector<float>> route_scratch_;  // per thread
};

}  // namespace tidemill
