// A model as described by the bindings, and the decoder's model built from it.
#pragma once
#include <cstdint>
#include <vector>

#include "model/layers.h"
#include "model/weights.h"

namespace tidemill {

// Sizes, and ids of WeightStore entries (-1: none).
struct NormConfig {
  int weight = -1, bias = -1;
};

struct LinearConfig {
  int weight = -1, bias = -1;
};

struct FeedForwardConfig {
  LinearConfig gate, up, down;
  int activation = 0;
  float gate_scale = 1;
};

struct ExpertsConfig {
  std::vector<FeedForwardConfig> experts;  // empty: no experts
  LinearConfig router, shared_gate;
  FeedForwardConfig shared;
  NormConfig router_norm, experts_norm, experts_post, shared_post;  // all or none
  int expert_scales = -1;
  float router_scale = 1;
  int e_score_correction_bias = -1, top_k = 0, scoring = 0, groups = 1, top_groups = 1;
  bool normalize = true, scale_inputs = false;
  float scale = 1, jitter = 0;
};

// qkv.weight is -1 if the layer has no recurrent mixer.
struct RecurrentMixerConfig : RecurrentConfig {
  LinearConfig qkv, z, a, b, out;
  int conv = -1, conv_bias = -1, a_log = -1, a_bias = -1, skip = -1, norm = -1;
};

// See Latent in layers.h.
struct LatentConfig {
  int64_t rank = 0, rope = 0, nope = 0, value = 0;  // rank 0: no latent attention
  float norm_eps = 0;
  LinearConfig q_down, kv_down;
  NormConfig q_norm, kv_norm;
  std::vector<LinearConfig> k_up, v_up;
};

struct LayerConfig {
  int32_t heads = 0, kv_heads = 0, head_dim = 0, v_dim = 0;
  float scale = 0, softcap = 0, clip = 0, temperature_scale = 0, temperature_floor = 0;
  int temperature_shift = 1;
  int64_t window = 0;
  bool chunked = false;
  int rope = -1;
  int cache_group = 0;
  int kv_layer = -1;  // earlier layer whose K and V are read; -1: its own
  int slopes = -1, sinks = -1;
  LinearConfig q, k, v, o, gate;
  RecurrentMixerConfig recurrent;
  LatentConfig latent;
  NormConfig attn_norm, attn_post_norm, mlp_norm, mlp_post_norm, q_norm, k_norm, v_norm;
  int qk_scope = 0;
  bool qk_layer_norm = false, qk_after_rope = false, parallel = false;
  FeedForwardConfig mlp;
  ExpertsConfig moe;
  float mixer_scale = 1, parallel_scale = 1, mlp_scale = 1;
  LinearConfig input_gate, input_out;
  NormConfig input_post;
  int scale_id = -1;  // a vector with one value, or -1
};

// See LayerInputs in layers.h.
struct LayerInputsConfig {
  int64_t width = 0, vocab = 0;
  int activation = 0;
  float embed_scale = 1, projection_scale = 1, sum_scale = 1;
  int embedding = -1, embedding_type = 0;
  LinearConfig projection;
  NormConfig norm;
};

// Embedding rows that stay in the model file.
struct EmbeddingSource {
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
};

struct ModelConfig {
  int64_t vocab = 0, hidden = 0, max_positions = 0;
  float norm_eps = 0;
  bool layer_norms = false;
  float embed_scale = 1, residual_scale = 1, logit_scale = 1, logit_softcap = 0;
  std::vector<LayerConfig> layers;
  std::vector<std::vector<float>> ropes;  // inverse frequencies
  std::vector<float> rope_scales;         // of cosines and sines
  std::vector<int64_t> group_windows;     // per cache group; 0: full attention
  int kv_type = 0, block_size = 0;
  int embedding = -1;                     // a matrix id, or -1: use the embedding source
  int embedding_type = 0;
  int positions = -1;
  int types = -1;
  bool causal = true, norm_sums = false;
  NormConfig embed_norm, final_norm;
  LinearConfig lm_head;
  LayerInputsConfig inputs;
};

// Error (Internal) if sizes contradict each other, (Unsupported) for shapes the kernels do not support,
// (ModelFile) if an embedding source has the wrong size. `inputs` is the embedding of the per-layer
// inputs.
DecoderModel build_model(const WeightStore& weights, const ModelConfig& config,
                         EmbeddingSource embedding, EmbeddingSource inputs);

}  // namespace tidemill
