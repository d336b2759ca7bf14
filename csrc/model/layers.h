// A decoder's layers and weights as data: models/layers.py and models/spec.py, ready to run.
#pragma once
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/recurrent.h"
#include "model/rope.h"
#include "model/route.h"
#include "model/shard.h"

namespace tidemill {

enum class NormScope : int { Head, Heads, Full };  // of Q and K norms: see models/spec.py

struct QkNorm {
  Norm q, k;
  Norm v;  // always per head, whatever the scope
  NormScope scope = NormScope::Head;
  bool layer_norm = false, after_rope = false;
};

// down(act(gate) * up), or down(act(up)) without a gate.
struct FeedForward {
  Linear gate, up, down;
  Activation activation = Activation::Silu;
  float gate_scale = 1;
  bool gated() const { return gate.weight != nullptr; }
};

struct Experts {
  Routing routing;
  Linear router;
  std::vector<FeedForward> experts;
  FeedForward shared;  // up.weight null: none
  Linear shared_gate;  // null: the shared expert's output is added ungated
  bool scale_inputs = false;  // routing weights scale the experts' inputs, not their outputs
  // If set, the router, the experts and the shared expert each have an input norm, and both outputs are
  // normed before they are added. Otherwise all of them read the same input.
  Norm router_norm, experts_norm, experts_post, shared_post;
  bool apart() const { return static_cast<bool>(router_norm); }
};

// Multi-head latent attention (DeepSeek-V2, section 2.1) with absorbed projections. All heads share one
// normed latent and one rotated key: K is [latent, rope key], V is the latent. K and V are never
// expanded from the cached latents; instead each head's query is projected into latent space (k_up) and
// its attention output projected back (v_up).
struct Latent : LatentShape {
  Linear q_down, kv_down;          // q_down.weight null: queries are projected directly from x
  Norm q_norm, kv_norm;
  std::vector<Linear> k_up, v_up;  // per head, [rank, nope] and [value, rank]
  int64_t query() const { return nope + rope; }
};

// Attention temperature tuning (Llama 4): queries are scaled by a factor that grows with position.
struct AttentionTemperature {
  float scale = 0, floor = 0;  // floor 0: disabled
  int shift = 1;               // added to the position
  float at(int64_t position) const {
    return std::log1p(std::floor(static_cast<float>(position + shift) / floor)) * scale + 1;
  }
};

struct DecoderLayer {
  AttnShape attention{};
  int rope = -1;  // index of its RoPE table; -1: none
  int cache_group = 0;
  int kv_layer = -1;  // layer whose K and V are read; -1: its own
  const float* sinks = nullptr;
  float clip = 0;  // clamp of Q, K and V; 0: none
  AttentionTemperature temperature;
  // k and v are null for latent attention and for layers that read another layer's K and V. v alone is
  // null if V equals K before its norm and RoPE.
  Linear q, k, v, o;
  Linear gate;  // sigmoid gate of the heads' outputs, or none
  bool split_heads = false;  // the processes of a group each compute their heads of it; else all compute all
  std::unique_ptr<Latent> latent;
  QkNorm qk_norm;
  Norm attn_norm, attn_post_norm, mlp_norm, mlp_post_norm;
  std::unique_ptr<Recurrent> recurrent;  // replaces attention or runs in parallel with it
  FeedForward mlp;                  // dense layers
  std::unique_ptr<Experts> experts;
  bool parallel = false;            // mixer and feed-forward read the same x
  bool has_attention = true, has_feed_forward = true;  // a layer may have only one block
  bool has_mixer() const { return has_attention || recurrent != nullptr; }
  float mixer_scale = 1, parallel_scale = 1, mlp_scale = 1;  // scales of the blocks' outputs
  // Layers with their own input (LayerInputs): x += norm(out(act(gate(x)) * input)).
  Linear input_gate, input_out;
  Norm input_post;
  float scale = 1;  // of x after the blocks
  int64_t packed_needed = 0;  // packed matrices required before a step may run this layer
};

// Source of embedding rows: a packed matrix (tied or requantized), of which a shard has its part, or the
// bytes of the file.
struct Embedding {
  const PackedMatrix* packed = nullptr;
  WeightType type = WeightType::F32;
  const uint8_t* source = nullptr;
  int64_t row_bytes = 0;
};

// Per-layer inputs (see models/layers.py).
struct LayerInputs {
  int64_t width = 0;  // per layer; 0: none
  Activation activation = Activation::GeluTanh;
  float embed_scale = 1, projection_scale = 1, sum_scale = 1;
  Embedding embedding;
  Linear projection;
  Norm norm;
};

struct DecoderModel {
  Shard shard;
  bool embeds = true;  // a stage that is not the first has neither embedding nor output
  int64_t vocab = 0, hidden = 0, max_positions = 0;
  float norm_eps = 0;
  bool layer_norms = false;  // else RMS norms
  float embed_scale = 1, residual_scale = 1, logit_scale = 1;
  float logit_softcap = 0;   // 0: none
  std::vector<DecoderLayer> layers;
  int64_t state_floats = 0;  // size of one state over all recurrent layers
  std::vector<RopeTable> ropes;
  Embedding embedding;
  LayerInputs inputs;
  const PackedMatrix* positions = nullptr;  // learned position embeddings, or null
  Norm embed_norm, final_norm;
  const PackedMatrix* types = nullptr;  // token type embeddings, or null
  bool causal = true;      // false (encoder): a row holds its whole input and every token sees all of it
  bool norm_sums = false;  // post-norm: a block's norm is applied to x plus its output
  Linear lm_head;
  int64_t embedding_packed_needed = 0, head_packed_needed = 0;  // see DecoderLayer
};

}  // namespace tidemill
