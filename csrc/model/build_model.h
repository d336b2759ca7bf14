// Builds the decoder's model from its description.
#pragma once
#include <cstdint>

#include "model/config.h"
#include "model/layers.h"
#include "model/weights.h"

namespace tidemill {

// Embedding rows that stay in the model file.
struct EmbeddingSource {
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
};

// Error (Internal) if sizes contradict each other, (Unsupported) for shapes the kernels do not support,
// (ModelFile) if an embedding source has the wrong size. `inputs` is the embedding of the per-layer
// inputs.
DecoderModel build_model(const WeightStore& weights, const ModelConfig& config,
                         EmbeddingSource embedding, EmbeddingSource inputs);

}  // namespace tidemill
