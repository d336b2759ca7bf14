// Token embeddings, and per-layer embeddings as an additional input of each layer.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "model/residual_stream.h"
#include "model/step_context.h"

namespace tidemill {

class EmbeddingBlock {
 public:
  EmbeddingBlock(StepContext& context, ResidualStream& stream);

  // x of the first tokens of the step: their scaled rows of the embedding or the vectors given in place
  // of them, learned positions, token types and norm.
  void run(const std::vector<int32_t>& token_ids);

 private:
  void apply_adapter(int64_t token, int64_t id, float* row) const;
  // Rows of the embedding, each unpacked by the shard that has it.
  void read_shards(const std::vector<int32_t>& token_ids);

  StepContext& context_;
  ResidualStream& stream_;
  std::vector<int> owner_;  // per token
};

class LayerInputsBlock {
 public:
  LayerInputsBlock(StepContext& context, ResidualStream& stream);

  // Before the first layer: the inputs of all layers, from the embedded tokens.
  void prepare(const std::vector<int32_t>& token_ids);
  // After the blocks of layer l: norm(out(act(gate(x)) * input)), which is pending then.
  void run(size_t l);

 private:
  StepContext& context_;
  ResidualStream& stream_;
  int64_t gate_width_;
  Buffer<float> inputs_;  // [tokens, layers * width]
  Buffer<float> gate_;
};

}  // namespace tidemill
