#include "model/build_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace tidemill {

namespace {

class Builder {
 public:
  Builder(const WeightStore& weights, const ModelConfig& config)
      : weights_(weights), config_(config), shard_{config.rank, config.ranks} {}

  const PackedMatrix& matrix(int id) {
    reached_ = std::max<int64_t>(reached_, id + 1);
    return weights_.matrix(id);
  }

  // Number of packed matrices required by what was built so far.
  int64_t needed() { return std::exchange(reached_, 0); }

  Linear linear(const LinearConfig& c, int64_t n, int64_t k) {
    const PackedMatrix& weight = matrix(c.weight);
    if (weight.n != n || weight.k != k) {
      throw internal_error("a matrix is [" + std::to_string(weight.n) + ", " +
                           std::to_string(weight.k) + "] where [" + std::to_string(n) + ", " +
                           std::to_string(k) + "] is needed");
    }
    return {&weight, vector(c.bias, n), c.weight};
  }

  Norm norm(const NormConfig& c, int64_t width) const {
    return {vector(c.weight, width), vector(c.bias, width)};
  }

  DecoderLayer layer(const LayerConfig& c) {
    DecoderLayer layer;
    if (c.recurrent.qkv.weight >= 0) {
      layer.recurrent = std::make_unique<Recurrent>(recurrent(c.recurrent));
    }
    layer.has_attention = c.heads > 0;
    if (layer.has_attention) attention(c, layer);
    layer.parallel = c.parallel;
    layer.attn_norm = norm(c.attn_norm, config_.hidden);
    layer.attn_post_norm = norm(c.attn_post_norm, config_.hidden);
    layer.mlp_norm = norm(c.mlp_norm, config_.hidden);
    layer.mlp_post_norm = norm(c.mlp_post_norm, config_.hidden);
    if (!c.moe.experts.empty()) {
      layer.experts = std::make_unique<Experts>(experts(c.moe));
    } else if (c.mlp.up.weight >= 0) {
      layer.mlp = feed_forward(c.mlp);
    } else {
      layer.has_feed_forward = false;
    }
    const bool has_mixer = layer.has_mixer();
    if ((!has_mixer || !layer.has_feed_forward) && (layer.parallel || has_mixer == layer.has_feed_forward)) {
      throw internal_error("a layer has no block, or a parallel block without a partner");
    }
    if (layer.parallel && layer.has_attention && layer.recurrent) {
      throw internal_error("a layer has three parallel blocks");
    }
    layer.mixer_scale = c.mixer_scale;
    layer.parallel_scale = c.parallel_scale;
    layer.mlp_scale = c.mlp_scale;
    if (config_.inputs.width > 0) {
      layer.input_gate = linear(c.input_gate, config_.inputs.width, config_.hidden);
      layer.input_out = linear(c.input_out, config_.hidden, config_.inputs.width);
      layer.input_post = norm(c.input_post, config_.hidden);
    }
    if (c.scale_id >= 0) layer.scale = *weights_.vector(c.scale_id, 1);
    layer.packed_needed = needed();
    return layer;
  }

  // Embedding rows from a packed matrix (id >= 0) or from the file.
  Embedding embedding(int id, int type_code, int64_t rows, int64_t width, EmbeddingSource source,
                      const char* name) {
    if (id >= 0) return {linear({id, -1}, rows, width).weight};
    const auto type = static_cast<WeightType>(type_code);
    const int64_t row = source_row_bytes(type, width);
    if (source.data == nullptr || source.bytes != row * rows) {
      throw Error(ErrorKind::ModelFile, "the embedding's bytes contradict its shape", name);
    }
    return {nullptr, type, source.data, row};
  }

  LayerInputs layer_inputs(const LayerInputsConfig& c, int64_t layers, EmbeddingSource source) {
    LayerInputs in;
    if (c.width < 1) return in;
    in.width = c.width;
    in.activation = static_cast<Activation>(c.activation);
    in.embed_scale = c.embed_scale;
    in.projection_scale = c.projection_scale;
    in.sum_scale = c.sum_scale;
    in.embedding = embedding(c.embedding, c.embedding_type, c.vocab, layers * c.width, source,
                             "layer_inputs.embed.weight");
    in.projection = linear(c.projection, layers * c.width, config_.hidden);
    in.norm = norm(c.norm, c.width);
    if (c.vocab < config_.vocab) throw internal_error("tokens without an input of the layers");
    return in;
  }

 private:
  void attention(const LayerConfig& c, DecoderLayer& layer) {
    check(c);
    const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
    layer.attention = {c.heads,  c.kv_heads, c.head_dim, c.v_dim,
                       c.scale,  c.window,   c.softcap,  vector(c.slopes, c.heads),
                       c.chunked, config_.causal};
    layer.sinks = vector(c.sinks, c.heads);
    layer.rope = c.rope;
    layer.cache_group = c.cache_group;
    layer.clip = c.clip;
    layer.temperature = {c.temperature_scale, c.temperature_floor, c.temperature_shift};
    if (c.latent.rank > 0) return latent(c, layer);
    layer.kv_layer = c.kv_layer;
    layer.q = linear(c.q, q, config_.hidden);
    if (c.kv_layer < 0) layer.k = linear(c.k, kv, config_.hidden);
    if (c.v.weight >= 0) layer.v = linear(c.v, kv, config_.hidden);
    // A shard has either its heads and its rows of the output projection, or all of the attention.
    layer.split_heads = matrix(c.o.weight).n != config_.hidden;
    layer.o = layer.split_heads ? linear(c.o, shard_.part(config_.hidden), q * shard_.ranks)
                                : linear(c.o, config_.hidden, q);
    if (c.gate.weight >= 0) layer.gate = linear(c.gate, q, config_.hidden);
    const auto scope = static_cast<NormScope>(c.qk_scope);
    const bool head = scope == NormScope::Head;
    layer.qk_norm = {norm(c.q_norm, head ? c.head_dim : q), norm(c.k_norm, head ? c.head_dim : kv),
                     norm(c.v_norm, c.head_dim), scope, c.qk_layer_norm, c.qk_after_rope};
  }

  Recurrent recurrent(const RecurrentConfig& c) {
    if (c.key_heads < 1 || c.value_heads < 1 || c.value_heads % c.key_heads != 0 ||
        c.key_dim < 1 || c.value_dim < 1 || c.conv_kernel < 1 || c.conv_kernel > kMaxConvKernel) {
      throw internal_error("a recurrent mixer of impossible sizes");
    }
    Recurrent m;
    m.shape = c;
    const int64_t hidden = config_.hidden, channels = m.channels(), inner = m.inner();
    if (c.norm_groups < 0 || (c.norm_groups > 0 && inner % c.norm_groups != 0)) {
      throw internal_error("a recurrent mixer's norm has parts of unequal size");
    }
    m.qkv = linear(c.qkv, channels, hidden);
    m.z = linear(c.z, inner, hidden);
    m.a = linear(c.a, c.value_heads, hidden);
    if (c.delta) m.b = linear(c.b, c.value_heads, hidden);
    m.out = linear(c.out, hidden, inner);
    const float* const conv = weights_.vector(c.conv, channels * c.conv_kernel);  // [channels][conv_kernel]
    for (int64_t j = 0; j < c.conv_kernel; ++j) {
      for (int64_t i = 0; i < channels; ++i) {
        const float scale = i < inner ? c.x_scale : i < m.query_at() ? c.b_scale : c.c_scale;
        m.conv.push_back(conv[i * c.conv_kernel + j] * (c.delta ? 1.0f : scale));
      }
    }
    m.conv_bias = vector(c.conv_bias, channels);
    const float* const a_log = weights_.vector(c.a_log, c.value_heads);
    for (int64_t h = 0; h < c.value_heads; ++h) m.rate.push_back(-std::exp(a_log[h]));
    m.a_bias = weights_.vector(c.a_bias, c.value_heads);
    m.skip = vector(c.skip, c.value_heads);
    if (c.norm_groups > 0) {
      m.norm = weights_.vector(c.norm, c.norm_shared ? inner / c.norm_groups : inner);
    }
    // rms_norm divides by the mean square, the L2 norm by the sum: the factor sqrt(key_dim) is folded
    // in. Queries are scaled as well.
    const float unit = 1 / std::sqrt(static_cast<float>(c.key_dim));
    m.key_scale.assign(static_cast<size_t>(c.key_dim), unit);
    m.query_scale.assign(static_cast<size_t>(c.key_dim), 1 / static_cast<float>(c.key_dim));
    return m;
  }

  const float* vector(int id, int64_t count) const {
    return id < 0 ? nullptr : weights_.vector(id, count);
  }

  void latent(const LayerConfig& c, DecoderLayer& layer) {
    const LatentConfig& l = c.latent;
    const auto heads = static_cast<size_t>(c.heads);
    if (c.kv_heads != 1 || c.head_dim != l.rank + l.rope || c.v_dim != l.rank ||
        l.k_up.size() != heads || l.v_up.size() != heads) {
      throw internal_error("a latent layer contradicts its own shape");
    }
    const bool low = l.q_down.weight >= 0;
    const int64_t q_rank = low ? weights_.matrix(l.q_down.weight).n : config_.hidden;
    layer.latent = std::make_unique<Latent>();
    Latent& out = *layer.latent;
    static_cast<LatentShape&>(out) = l;
    if (low) {
      out.q_down = linear(l.q_down, q_rank, config_.hidden);
      out.q_norm = norm(l.q_norm, q_rank);
    }
    out.kv_down = linear(l.kv_down, l.rank + l.rope, config_.hidden);
    out.kv_norm = norm(l.kv_norm, l.rank);
    for (const LinearConfig& up : l.k_up) out.k_up.push_back(linear(up, l.rank, l.nope));
    for (const LinearConfig& up : l.v_up) out.v_up.push_back(linear(up, l.value, l.rank));
    layer.q = linear(c.q, int64_t{c.heads} * out.query(), q_rank);
    layer.o = linear(c.o, config_.hidden, int64_t{c.heads} * l.value);
  }

  void check(const LayerConfig& c) const {
    if (c.heads < 1 || c.kv_heads < 1 || c.heads % c.kv_heads != 0 || c.head_dim < 2 ||
        c.head_dim % 2 != 0 || c.v_dim < 1) {
      throw Error(ErrorKind::Unsupported,
                  "the native backend needs heads that are a multiple of kv_heads, and an even "
                  "head_dim; got " + std::to_string(c.heads) + ", " + std::to_string(c.kv_heads) +
                      ", " + std::to_string(c.head_dim), "head_dim");
    }
    if (c.rope >= static_cast<int>(config_.ropes.size()) || c.cache_group < 0 ||
        c.cache_group >= static_cast<int>(config_.group_windows.size())) {
      throw internal_error("a layer names a rope table or cache group that does not exist");
    }
  }

  FeedForward feed_forward(const FeedForwardConfig& c) {
    const int64_t all = weights_.matrix(c.down.weight).k, width = shard_.part(all), hidden = config_.hidden;
    FeedForward mlp;
    mlp.activation = static_cast<Activation>(c.activation);
    mlp.gate_scale = c.gate_scale;
    if (c.gate.weight >= 0) mlp.gate = linear(c.gate, width, hidden);
    mlp.up = linear(c.up, width, hidden);
    mlp.down = linear(c.down, shard_.part(hidden), all);
    return mlp;
  }

  Experts experts(const ExpertsConfig& c) {
    const auto count = static_cast<int64_t>(c.experts.size());
    if (c.top_k < 1 || c.top_k > count || c.groups < 1 || count % c.groups != 0 ||
        c.top_groups < 1 || c.top_groups > c.groups ||
        count / c.groups * c.top_groups < c.top_k) {
      throw internal_error("top_k experts cannot be chosen so");
    }
    Experts moe;
    moe.routing = {count, c.top_k, static_cast<Scoring>(c.scoring), c.normalize, c.scale,
                   vector(c.e_score_correction_bias, count), c.groups, c.top_groups, c.jitter, c.router_scale,
                   vector(c.expert_scales, count)};
    moe.scale_inputs = c.scale_inputs;
    moe.router = linear(c.router, count, config_.hidden);
    for (const FeedForwardConfig& expert : c.experts) moe.experts.push_back(feed_forward(expert));
    if (c.shared.up.weight >= 0) moe.shared = feed_forward(c.shared);
    if (c.shared_gate.weight >= 0) moe.shared_gate = linear(c.shared_gate, 1, config_.hidden);
    moe.router_norm = norm(c.router_norm, config_.hidden);
    moe.experts_norm = norm(c.experts_norm, config_.hidden);
    moe.experts_post = norm(c.experts_post, config_.hidden);
    moe.shared_post = norm(c.shared_post, config_.hidden);
    if (moe.apart() && (!moe.experts_norm || !moe.experts_post || !moe.shared_post ||
                        moe.shared.up.weight == nullptr || moe.shared_gate)) {
      throw internal_error("experts apart lack a norm or the shared one");
    }
    return moe;
  }

  const WeightStore& weights_;
  const ModelConfig& config_;
  const Shard shard_;
  int64_t reached_ = 0;
};

}  // namespace

DecoderModel build_model(const WeightStore& weights, const ModelConfig& config,
                         EmbeddingSource embedding, EmbeddingSource inputs) {
  Builder builder(weights, config);
  DecoderModel m;
  m.shard = {config.rank, config.ranks};
  m.vocab = config.vocab;
  m.hidden = config.hidden;
  m.max_positions = config.max_positions;
  m.norm_eps = config.norm_eps;
  m.layer_norms = config.layer_norms;
  m.embed_scale = config.embed_scale;
  m.residual_scale = config.residual_scale;
  m.logit_scale = config.logit_scale;
  m.logit_softcap = config.logit_softcap;
  for (const LayerConfig& c : config.layers) {
    m.layers.push_back(builder.layer(c));
    if (Recurrent* const mixer = m.layers.back().recurrent.get()) {
      mixer->state_at = m.state_floats;
      m.state_floats += round_up(mixer->state_floats(), 16);
    }
  }
  if (config.ropes.size() != config.rope_scales.size()) throw internal_error("a scale per rope");
  for (size_t i = 0; i < config.ropes.size(); ++i) {
    m.ropes.emplace_back(config.ropes[i], config.rope_scales[i]);
  }
  for (size_t l = 0; l < m.layers.size(); ++l) {
    const DecoderLayer& layer = m.layers[l];
    if (layer.kv_layer < 0) continue;
    const bool known = layer.kv_layer < static_cast<int>(l);
    const DecoderLayer& source = m.layers[known ? static_cast<size_t>(layer.kv_layer) : l];
    const AttnShape &a = layer.attention, &b = source.attention;
    if (!known || !source.has_attention || source.latent || source.kv_layer >= 0 ||
        source.cache_group != layer.cache_group || a.kv_heads != b.kv_heads ||
        a.head_dim != b.head_dim || a.v_dim != b.v_dim || a.window != b.window) {
      throw internal_error("layer " + std::to_string(l) + " reads K and V that are not there");
    }
  }
  m.embeds = config.stage == 0;
  if (m.embeds) {
    const int64_t rows = config.embedding >= 0 ? m.shard.part(m.vocab) : m.vocab;
    m.embedding = builder.embedding(config.embedding, config.embedding_type, rows, m.hidden,
                                    embedding, "embed.weight");
  }
  m.inputs = builder.layer_inputs(config.inputs, static_cast<int64_t>(m.layers.size()), inputs);
  if (config.positions >= 0) {
    m.positions = &builder.matrix(config.positions);
    if (m.positions->n < m.max_positions) throw internal_error("positions without a vector");
  }
  m.causal = config.causal;
  m.norm_sums = config.norm_sums;
  if (config.types >= 0) m.types = &builder.matrix(config.types);
  m.embedding_packed_needed = builder.needed();
  m.embed_norm = builder.norm(config.embed_norm, m.hidden);
  m.final_norm = builder.norm(config.final_norm, m.hidden);
  if (config.lm_head.weight >= 0) {
    m.lm_head = builder.linear(config.lm_head, m.shard.part(m.vocab), m.hidden);
    m.head_packed_needed = builder.needed();
  }
  return m;
}

}  // namespace tidemill
