// Decoder: runs the layers of any DecoderSpec over a ragged batch of tokens.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "memory/cache.h"
#include "memory/memory.h"
#include "model/attend.h"
#include "model/linear.h"
#include "model/recurrent.h"
#include "model/rope.h"
#include "model/route.h"
#include "runtime/latch.h"
#include "runtime/step.h"
#include "runtime/threadpool.h"

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

// Set of activation types that the block's first products read.
inline unsigned input_acts(const FeedForward& mlp) {
  return act_bit(mlp.up) | (mlp.gated() ? act_bit(mlp.gate) : 0u);
}

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
struct Latent {
  int64_t rank = 0, rope = 0;      // widths of the latent and of the rotated key
  int64_t nope = 0, value = 0;     // widths of a head's unrotated query and of its output
  float norm_eps = 0;
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
  std::unique_ptr<Latent> latent;
  QkNorm qk_norm;
  Norm attn_norm, attn_post_norm, mlp_norm, mlp_post_norm;
  std::unique_ptr<Recurrent> recurrent;  // replaces attention or runs in parallel with it
  FeedForward mlp;                  // dense layers
  std::unique_ptr<Experts> experts;
  bool parallel = false;            // mixer and feed-forward read the same x
  bool has_attention = true, has_feed_forward = true;  // a layer may have only one block
  bool has_mixer() const { return has_attention || recurrent != nullptr; }
  float mixer_scale = 1, parallel_mixer_scale = 1, mlp_scale = 1;  // scales of the blocks' outputs
  // Layers with their own input (LayerInputs): x += norm(out(act(gate(x)) * input)).
  Linear input_gate, input_out;
  Norm input_post;
  float scale = 1;  // of x after the blocks
  int64_t packed_needed = 0;  // packed matrices required before a step may run this layer
};

// Source of embedding rows: a packed matrix (tied or requantized) or the bytes of the file.
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

// Runs the layers, one step at a time. Buffers are kept between steps.
class Decoder {
 public:
  // `packed` counts the packed matrices. `cancelled` is polled between phases; if it returns true, the
  // step ends with Error (Unavailable).
  Decoder(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model, Latch& packed,
          std::function<bool()> cancelled);

  // Total seconds spent waiting for matrices to be packed.
  double packing_wait_seconds() const { return packing_wait_seconds_; }
  // Computes all tokens of the step (token_ids are real ids) and writes K and V into `cache`.
  void forward(const StepInput& step, const std::vector<int32_t>& token_ids, KvCache& cache);
  // Final hidden states of `count` tokens: out [count, hidden].
  void hidden(const int64_t* tokens, int64_t count, float* out);
  // Logits of `count` tokens (indices into the last forward's tokens): out [count, vocab].
  void logits(const int64_t* tokens, int64_t count, float* out);

 private:
  // A product of packed activations with one matrix into out [rows, ldo].
  struct Product {
    const Linear* linear;
    float* out;
    int64_t ldo;
    int64_t first_row, rows;  // of the packed activations
  };
  // A block's output that has not been added to the residual stream yet.
  struct Residual {
    const float* values;  // [tokens, delta_stride_]
    Norm post;
    float scale = 1;
    float after = 1;  // factor of x after the addition
  };
  // Packed rows, per activation type.
  struct Acts {
    Buffer<uint8_t> rows[kActTypes];
    int64_t stride[kActTypes] = {};
    uint8_t* row(int act, int64_t index) const { return rows[act].data() + index * stride[act]; }
    void ensure(int act, int64_t count) { rows[act].ensure(count * stride[act]); }
  };
  // Consecutive tokens of one row that share a cache block.
  struct WriteItem {
    int64_t token, count;
    int64_t row, position;
  };
  // Hidden states of a row before `layer`, kept between the steps that compute its layers.
  struct PartialRow {
    int64_t sequence = -1, start = 0, count = 0, layer = 0;
    Buffer<float> x{};
    bool same(const PartialRow& other) const {
      return sequence == other.sequence && start == other.start && count == other.count &&
             layer == other.layer;
    }
  };

  void size_layer_buffers(const DecoderLayer& layer);
  void size_latent_buffers(const DecoderLayer& layer);
  void set_strides(Acts& acts, int64_t k) const;  // for rows of up to k values
  void size_buffers(int64_t tokens);
  void compute_rows(const StepInput& step, int64_t rows);
  void run_layer(size_t l, const StepInput& step, KvCache& cache);
  void restore_partial_row(const StepInput& step);
  void save_partial_row(const StepInput& step);
  void prepare(const StepInput& step, const KvCache& cache);
  void prepare_tables(const StepInput& step, const KvCache& cache);
  void embed(const StepInput& step, const std::vector<int32_t>& token_ids);
  void embedding_row(const Embedding& from, int64_t id, int64_t width, float* out) const;
  // Computes inputs_ from the embedded tokens in x_.
  void embed_inputs(const std::vector<int32_t>& token_ids);
  // Adds the per-layer input block of layer l to the pending residuals.
  void add_layer_input(size_t l);
  // Runs the mixers of layer l. Their outputs are pending, in delta_ and delta2_.
  void run_mixer(size_t l, const StepInput& step, KvCache& cache);
  // K and V that layer l reads, and the attention plan for them.
  struct LayerKv {
    const KvLayer* kv;
    Attend* plan;
  };
  LayerKv layer_kv(size_t l, const KvCache& cache) const;
  // Attention of norm(x) over layer l's K and V, into delta_. The products that follow prefetch from
  // `cache` what the next layer's attention reads.
  void run_attention(size_t l, const LayerKv& keys, const KvCache& cache);
  // Recurrent mixers (decoder_recurrent.cpp).
  struct MixLayout;
  void size_recurrent_buffers(const Recurrent& mixer);
  static unsigned recurrent_acts(const Recurrent& mixer);
  void run_recurrent(const Recurrent& mixer, const StepInput& step, StatePool& states, float* out);
  const float* conv_input_row(const Recurrent& mixer, const StepInput& step, const StatePool& states,
                        int64_t r, int64_t back) const;
  void convolve(const Recurrent& mixer, const StepInput& step, const StatePool& states, int64_t t);
  void save_conv_tail(const Recurrent& mixer, const StepInput& step, StatePool& states, int64_t r,
                 const StatePool::Run& run);
  void scan(const Recurrent& mixer, const StepInput& step, StatePool& states, int64_t r,
            int64_t head, const StatePool::Run& run);
  void gate_row(const Recurrent& mixer, int64_t t);
  void write_kv(const DecoderLayer& layer, const KvLayer& kv);
  // One token's write into the cache; `share` is the index of a part of its heads.
  struct Write {
    int64_t token, position, block, share;
  };
  // Calls body for every token and share. No two threads handle the same (block, share), so body may
  // write there whatever the block's layout.
  void for_each_write(const DecoderLayer& layer, const KvLayer& kv, int64_t shares,
                  const std::function<void(const Write&)>& body);
  void attend_latent(const DecoderLayer& layer, const KvLayer& kv, Attend& plan);
  void write_latents(const DecoderLayer& layer, const KvLayer& kv);
  void absorb_queries(const DecoderLayer& layer);
  struct Heads {
    int64_t first, end;  // KV heads
  };
  void norm_and_rope_heads(const DecoderLayer& layer, int64_t position, const Heads& heads,
                   float* qkv) const;
  void norm_heads(const DecoderLayer& layer, const Heads& heads, float* q, float* k) const;
  // The feed-forward block of norm(x), written to `out`.
  void feed_forward(const DecoderLayer& layer, const Norm& norm, float* out);
  // One feed-forward over rows already packed in acts_ (decoder_feed.cpp).
  void dense(const FeedForward& mlp, int64_t rows, float* out);
  // Computes the input of `down` into down_acts_: one product after the other, or gate and up fused by
  // panels.
  void compute_gate_up(const FeedForward& mlp, int64_t rows);
  void compute_gate_up_fused(const FeedForward& mlp, int64_t rows);
  void compute_fused_part(const FeedForward& mlp, int64_t m0, int64_t rows, int64_t p0, int64_t panels,
                 int thread, float* scratch);
  static bool fuses_gate_up(const FeedForward& mlp, int64_t rows);
  bool packs_row_parts(ActType act) const;  // whether part of a row can be packed
  // act(gate) * up, or act(up) without a gate. `gate` is scaled in place.
  void activate(const FeedForward& mlp, float* gate, const float* up, int64_t count,
                float* out) const;
  // The same for row t of mlp_, packed for `down` as row t of `acts`.
  void activate_row(const FeedForward& mlp, int64_t t, int thread, Acts& acts);
  void choose_experts(const Experts& moe);
  void run_moe(const Experts& moe, float* out);
  void run_moe_own_norms(const Experts& moe, const Norm& norm, float* out);
  void run_experts_chunked(const Experts& moe, float* out);
  void run_experts_chunk(const Experts& moe, int64_t first, int64_t count, float* out);
  void group_by_expert(const Experts& moe, int64_t first, int64_t count);
  void run_experts(const Experts& moe, int64_t slots);
  // Adds the pending residuals to x, applies the norm and packs the result for its consumers; `keep`
  // also receives it as float.
  void add_norm_pack(const Norm& norm, unsigned acts, float* keep = nullptr);
  void apply_residual(int64_t token, float* scratch);
  void apply_residuals();
  void apply_norm(const Norm& norm, const float* x, float* out) const;
  // Packs rows [tokens, n] at `rows`, `stride` floats apart, for `to`.
  void pack_rows(const float* rows, int64_t stride, const Linear& to);
  void multiply(const Product* products, size_t count, Acts& acts);
  void multiply(std::initializer_list<Product> products) {
    multiply(products.begin(), products.size(), acts_);
  }
  // Sets what waiting threads prefetch: the first weights of the given products, of layer l (after the
  // last layer: of the output layer), or of a layer's feed-forward block.
  void prefetch_weights(std::initializer_list<const Linear*> linears);
  void prefetch_layer(size_t l);
  // The following products prefetch the K and V of the next layer that has attention.
  void prefetch_next_kv(size_t l, const KvCache& cache);
  KvPrefetch* kv_prefetch(int thread) {
    return kv_prefetch_.empty() ? nullptr : &kv_prefetch_[static_cast<size_t>(thread)];
  }
  void prefetch_feed_forward(const DecoderLayer& layer);
  void pack_row(unsigned types, const float* row, int64_t k, int64_t index, Acts& acts);
  // Runs body(token, thread) for every token.
  template <class Body>
  void for_each_token(int64_t count, Body&& body) {
    // Waking another thread takes about as long as one token's share of an elementwise phase.
    pool_.run_tapered(count, count <= 2 ? count : 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t t = begin; t < end; ++t) body(t, thread);
    });
  }
  void check_cancelled() const;
  void wait_until_packed(int64_t count);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  DecoderModel& model_;
  Latch& packed_;
  std::function<bool()> cancelled_;
  double packing_wait_seconds_ = 0;
  std::vector<std::unique_ptr<Attend>> attends_;  // one per geometry and cache group
  struct Plan {
    AttnShape shape;
    int cache_group;
  };
  std::vector<Plan> plans_;
  std::vector<int> layer_plan_;

  // How one product is split into the items of a loop.
  struct ProductPlan {
    int64_t first, items;
    int64_t panels, row_block;
  };
  ProductPlan plan_product(const PackedMatrix& w, int64_t rows, int64_t first) const;
  std::vector<ProductPlan> product_plans_;
  std::vector<KvPrefetch> kv_prefetch_;  // per thread; empty: not used on this processor
  std::vector<Residual> pending_;

  int64_t tokens_ = 0;       // of the current layer
  int64_t write_count_ = 0;  // of writes_, for the current layer
  int64_t delta_stride_ = 0;
  unsigned used_acts_ = 0;
  int64_t qkv_width_ = 0, heads_width_ = 0, mlp_width_ = 0, scratch_width_ = 0;
  int64_t mix_width_ = 0;
  std::vector<float> zero_tail_;     // zeros
  std::vector<int64_t> row_of_;    // per token: its row in the step
  std::vector<std::vector<StatePool::Run>> state_runs_;  // per row
  int64_t act_k_ = 0;  // largest input width of any matrix
  std::vector<int64_t> positions_;
  std::vector<std::vector<int32_t>> tables_;       // per group: padded block tables
  std::vector<int64_t> table_stride_;
  std::vector<std::vector<AttendRow>> attend_rows_;  // per group
  std::vector<WriteItem> writes_;
  PartialRow partial_rows_[2];
  size_t layer_ = 0;   // current layer
  size_t restored_ = 0;  // index of the partial row this step resumed
  Buffer<float> x_, qkv_, heads_, gate_, mix_, delta_, delta2_, mlp_, fused_, scratch_;
  Buffer<float> inputs_;  // [tokens, layers * width]
  Acts acts_, expert_acts_, down_acts_;  // of tokens, of expert slots, and the input of `down`
  // Latent attention: queries (later outputs), low-rank queries, [latent, key]; per-head activations.
  Buffer<float> latent_queries_, low_rank_, latents_;
  Acts head_acts_;
  int64_t latent_queries_width_ = 0, low_rank_width_ = 0, latent_width_ = 0, head_k_ = 0;
  // Experts: a slot is one (token, expert) pair; slots are sorted by expert.
  Buffer<float> router_, slot_out_, shared_out_, shared_gate_, normed_;
  std::vector<int32_t> chosen_;      // [tokens, top_k]
  std::vector<float> shares_;        // [tokens, top_k]
  std::vector<int64_t> slot_of_;     // [tokens, top_k]
  std::vector<int64_t> slot_token_;
  std::vector<float> slot_share_;
  std::vector<int64_t> expert_slot_;  // first slot of each expert, then the total
  std::vector<Product> products_;
  std::vector<std::vector<float>> route_scratch_;  // per thread
};

}  // namespace tidemill
