// Decoder: runs the layers of any DecoderSpec over a ragged batch of tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "memory/cache.h"
#include "model/attention.h"
#include "model/embedding.h"
#include "model/experts.h"
#include "model/feed_forward.h"
#include "model/latent_attention.h"
#include "model/layers.h"
#include "model/partial_rows.h"
#include "model/recurrent_mixer.h"
#include "model/residual_stream.h"
#include "model/step_context.h"
#include "model/step_kv.h"
#include "runtime/latch.h"
#include "runtime/stage.h"
#include "runtime/step.h"

namespace tidemill {

// Orders the blocks of each layer, one step at a time. Buffers are kept between steps.
class Decoder {
 public:
  // `packed` counts the packed matrices. `cancelled` is polled between phases; if it returns true, the
  // step ends with Error (Unavailable). `group`: see StepContext. `stage`: of the chain of processes that
  // compute the layers one part after the other; null: this one computes all of them.
  Decoder(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model, Latch& packed,
          std::function<bool()> cancelled, Group* group, Stage* stage);

  // Total seconds spent waiting for matrices to be packed.
  double packing_wait_seconds() const { return packing_wait_seconds_; }
  // Computes all tokens of the step (token_ids are real ids) and writes K and V into `cache`. A stage computes
  // its layers, of what the one before left, and sends on what they leave.
  void forward(const StepInput& step, const std::vector<int32_t>& token_ids, KvCache& cache);
  // For stage 0, of a step whose `forward` is done: receives what the last stage left, which `hidden` and
  // `logits` then read. Another step's `forward` may have run between.
  void receive_results(const StepInput& step, KvCache& cache);
  // Final hidden states of `count` tokens: out [count, hidden].
  void hidden(const int64_t* tokens, int64_t count, float* out);
  // x in front of the step's hidden_layers, for its hidden_tokens: [layers, tokens, hidden].
  std::vector<float> take_layer_hidden() { return std::move(layer_hidden_); }
  // Logits of `count` tokens (indices into the last forward's tokens): out [count, vocab], complete in the
  // process that leads its group.
  void logits(const int64_t* tokens, int64_t count, float* out);

 private:
  void add_blocks(const DecoderLayer& layer);
  void begin(const StepInput& step, KvCache& cache);
  // The layers that follow compute the first `rows` rows only.
  void compute_rows(int64_t rows);
  // Whether the step leaves layer l out: x passes it unchanged, and its K and V are not written.
  bool skipped(int64_t l) const;
  // The layer computed after layer l; the number of layers after the last one.
  size_t layer_after(size_t l) const;
  void receive();
  void send();
  void embed(const std::vector<int32_t>& token_ids, int64_t rows);
  void run_layer(size_t l);
  // Runs the mixers of layer l; their outputs are pending then.
  void run_mixer(size_t l);
  // The feed-forward block of norm(x) of layer l, into `out`.
  void run_feed_forward(size_t l, const Norm& norm, float* out);
  // What a layer (after the last: the output layer) or its feed-forward block multiplies first.
  LinearList first_products(size_t l) const;
  LinearList first_feed_forward_products(const DecoderLayer& layer) const;
  // Keeps x in front of layer l (behind the last, if there is no such layer) if the step requests it.
  void keep_hidden(int64_t l);
  void check_cancelled() const;
  void wait_until_packed(int64_t count);

  DecoderModel& model_;
  Latch& packed_;
  Stage* const stage_;
  std::function<bool()> cancelled_;
  double packing_wait_seconds_ = 0;
  StepContext context_;
  ResidualStream stream_;
  StepKv kv_;
  EmbeddingBlock embedding_;
  LayerInputsBlock layer_inputs_;
  AttentionBlock attention_;
  LatentAttentionBlock latent_attention_;
  RecurrentBlock recurrent_;
  FeedForwardBlock feed_forward_;
  ExpertsBlock experts_;
  PartialRows partial_rows_;
  std::vector<int64_t> hidden_tokens_;  // whose x is kept; empty: none
  std::vector<float> layer_hidden_;
  RowAdapters logit_adapters_;
};

}  // namespace tidemill
