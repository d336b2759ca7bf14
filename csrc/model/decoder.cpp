#include "model/decoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "runtime/error.h"

namespace tidemill {

namespace {

// Extra entries after a row's last block, because kernels look ahead in the table when they prefetch.
constexpr int64_t kTablePadding = 32;

bool same_shape(const AttnShape& a, const AttnShape& b) {
  return a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.v_dim == b.v_dim && a.scale == b.scale && a.window == b.window &&
         a.softcap == b.softcap && a.slopes == b.slopes && a.chunked == b.chunked &&
         a.causal == b.causal;
}

unsigned attention_acts(const DecoderLayer& layer) {
  unsigned acts = act_bit(layer.q);
  for (const Linear* part : {&layer.k, &layer.v, &layer.gate}) {
    if (*part) acts |= act_bit(*part);
  }
  return acts;
}

unsigned all_acts(const FeedForward& mlp) { return input_acts(mlp) | act_bit(mlp.down); }

}  // namespace

Decoder::Decoder(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model, Latch& packed,
                 std::function<bool()> cancelled)
    : kernels_(kernels),
      pool_(pool),
      model_(model),
      packed_(packed),
      cancelled_(std::move(cancelled)) {
  act_k_ = model.hidden;
  delta_stride_ = row_stride(model.hidden);
  if (model_.lm_head.weight != nullptr) used_acts_ = act_bit(model_.lm_head);
  for (const DecoderLayer& layer : model.layers) {
    size_layer_buffers(layer);
    if (!layer.has_attention) {
      layer_plan_.push_back(-1);
      continue;
    }
    const AttnShape& a = layer.attention;
    size_t p = 0;
    while (p < plans_.size() && !(same_shape(plans_[p].shape, a) &&
                                  plans_[p].cache_group == layer.cache_group)) {
      ++p;
    }
    if (p == plans_.size()) {
      plans_.push_back({a, layer.cache_group});
      attends_.push_back(std::make_unique<Attend>(kernels, pool));
    }
    layer_plan_.push_back(static_cast<int>(p));
  }
  if (const LayerInputs& in = model.inputs; in.width > 0) {
    mlp_width_ = std::max(mlp_width_, 2 * row_stride(in.width));
    act_k_ = std::max(act_k_, in.width);
    used_acts_ |= act_bit(in.projection);
    for (const DecoderLayer& layer : model.layers) {
      used_acts_ |= act_bit(layer.input_gate) | act_bit(layer.input_out);
    }
    scratch_width_ = in.projection.weight->n;
  }
  scratch_width_ = round_up(std::max(scratch_width_, act_k_), 16);
  for (Acts* acts : {&acts_, &expert_acts_, &down_acts_}) set_strides(*acts, act_k_);
  set_strides(head_acts_, head_k_);
  scratch_.ensure(scratch_width_ * pool.threads());
  if (is_zen5_or_later()) kv_prefetch_.resize(static_cast<size_t>(pool.threads()));
}

// Buffer widths and activation types that the layer needs.
void Decoder::size_layer_buffers(const DecoderLayer& layer) {
  if (layer.recurrent) size_recurrent_buffers(*layer.recurrent);
  if (layer.has_attention) {
    const AttnShape& a = layer.attention;
    const int64_t q = int64_t{a.heads} * a.head_dim, kv = int64_t{a.kv_heads} * a.head_dim;
    qkv_width_ = std::max(qkv_width_, row_stride(layer.latent ? q : q + 2 * kv));
    heads_width_ = std::max(heads_width_, row_stride(int64_t{a.heads} * a.v_dim));
    act_k_ = std::max(act_k_, layer.o.weight->k);
    used_acts_ |= act_bit(layer.o);
    if (layer.latent) {
      size_latent_buffers(layer);
    } else {
      used_acts_ |= attention_acts(layer);
    }
  }
  const auto block = [&](const FeedForward& mlp) {
    mlp_width_ = std::max(mlp_width_, 2 * row_stride(mlp.up.weight->n));
    act_k_ = std::max(act_k_, mlp.up.weight->n);
    used_acts_ |= all_acts(mlp);
  };
  if (!layer.has_feed_forward) return;
  if (!layer.experts) return block(layer.mlp);
  const Experts& moe = *layer.experts;
  used_acts_ |= act_bit(moe.router);
  for (const FeedForward& expert : moe.experts) block(expert);
  if (moe.shared.up.weight != nullptr) block(moe.shared);
  if (moe.shared_gate.weight != nullptr) used_acts_ |= act_bit(moe.shared_gate);
}

void Decoder::set_strides(Acts& acts, int64_t k) const {
  for (int act = 0; act < kActTypes; ++act) {
    acts.stride[act] = kernels_.act_row_bytes(static_cast<ActType>(act), k);
  }
}

void Decoder::check_cancelled() const {
  if (cancelled_()) throw Error(ErrorKind::Unavailable, "the backend was closed during the step");
}

void Decoder::wait_until_packed(int64_t count) {
  if (packed_.count() >= count) return;
  const auto start = std::chrono::steady_clock::now();
  packed_.await(count);
  packing_wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Decoder::size_buffers(int64_t tokens) {
  x_.ensure(tokens * model_.hidden);
  delta_.ensure(tokens * delta_stride_);
  qkv_.ensure(tokens * qkv_width_);
  heads_.ensure(tokens * heads_width_);
  mlp_.ensure(tokens * mlp_width_);
  for (int act = 0; act < kActTypes; ++act) {
    if (used_acts_ >> act & 1u) acts_.ensure(act, tokens);
  }
}

// Block tables with -1 replaced and padding at the end: kernels mask what a query may not see, and
// every entry they can touch names a real block.
void Decoder::prepare_tables(const StepInput& step, const KvCache& cache) {
  const auto groups = static_cast<size_t>(cache.groups());
  tables_.resize(groups);
  table_stride_.resize(groups);
  attend_rows_.resize(groups);
  for (size_t g = 0; g < groups; ++g) {
    const Int32Table& table = step.block_tables[g];
    const int64_t stride = table.columns + kTablePadding;
    table_stride_[g] = stride;
    tables_[g].assign(static_cast<size_t>(step.rows() * stride), 0);
    int32_t highest = 0;
    for (int64_t r = 0; r < step.rows(); ++r) {
      for (int64_t b = 0; b < table.columns; ++b) {
        const int32_t block =
            std::max(0, table.values[static_cast<size_t>(r * table.columns + b)]);
        tables_[g][static_cast<size_t>(r * stride + b)] = block;
        highest = std::max(highest, block);
      }
    }
    cache.reached(static_cast<int64_t>(g), highest);
  }
}

void Decoder::prepare(const StepInput& step, const KvCache& cache) {
  size_buffers(step.tokens());
  prepare_tables(step, cache);
  positions_.resize(static_cast<size_t>(step.tokens()));
  row_of_.resize(static_cast<size_t>(step.tokens()));
  if (cache.states().needed()) state_runs_ = StatePool::runs(step);
  writes_.clear();
  int64_t last = 0;
  for (int64_t r = 0; r < step.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    const int64_t begin = step.row_start[i], end = step.row_start[i + 1];
    std::fill(row_of_.begin() + begin, row_of_.begin() + end, r);
    for (int64_t t = begin; t < end;) {
      const int64_t position = step.context_len[i] + t - begin;
      const int64_t count = std::min(end - t, cache.block_size() - position % cache.block_size());
      for (int64_t j = 0; j < count; ++j) positions_[static_cast<size_t>(t + j)] = position + j;
      writes_.push_back({t, count, r, position});
      last = std::max(last, position + count);
      t += count;
    }
  }
  for (RopeTable& rope : model_.ropes) rope.grow(last, pool_);
}

// The layers that follow compute the first `rows` rows only.
void Decoder::compute_rows(const StepInput& step, int64_t rows) {
  tokens_ = step.row_start[static_cast<size_t>(rows)];
  write_count_ = std::partition_point(writes_.begin(), writes_.end(),
                                      [&](const WriteItem& item) { return item.row < rows; }) -
                 writes_.begin();
  for (size_t g = 0; g < attend_rows_.size(); ++g) {
    attend_rows_[g].clear();
    for (int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<size_t>(r);
      attend_rows_[g].push_back({step.row_start[i], step.row_start[i + 1] - step.row_start[i],
                                 step.context_len[i], tables_[g].data() + r * table_stride_[g]});
    }
  }
  for (KvPrefetch& of : kv_prefetch_) of = KvPrefetch{};  // it points into plans that are rebuilt here
  if (tokens_ == 0) return;
  for (size_t p = 0; p < plans_.size(); ++p) {
    attends_[p]->plan(plans_[p].shape, attend_rows_[static_cast<size_t>(plans_[p].cache_group)]);
  }
}

void Decoder::forward(const StepInput& step, const std::vector<int32_t>& token_ids,
                      KvCache& cache) {
  const auto layers = static_cast<int64_t>(model_.layers.size());
  const LayerSlice slice = step.slice ? step.slice : LayerSlice{-1, 0, layers};
  prepare(step, cache);
  wait_until_packed(model_.embedding_packed_needed);
  const int64_t rows = step.rows() - (slice.begin > 0);  // rows that start at the first layer
  compute_rows(step, model_.inputs.width > 0 ? step.rows() : rows);
  embed(step, token_ids);
  if (model_.inputs.width > 0) {
    embed_inputs(token_ids);
    compute_rows(step, rows);
  }
  pending_.clear();
  for (int64_t l = 0; l < layers; ++l) {
    check_cancelled();
    if (l == slice.begin && l > 0) {
      apply_residuals();
      restore_partial_row(step);
      compute_rows(step, step.rows());
    } else if (l == slice.end) {
      apply_residuals();
      save_partial_row(step);
      compute_rows(step, step.rows() - 1);
    }
    if (tokens_ > 0) run_layer(static_cast<size_t>(l), step, cache);
  }
  apply_residuals();
}

void Decoder::run_layer(size_t l, const StepInput& step, KvCache& cache) {
  const DecoderLayer& layer = model_.layers[l];
  layer_ = l;
  wait_until_packed(layer.packed_needed);
  if (layer.parallel) {  // both blocks read the same x
    run_mixer(l, step, cache);
    const Residual mixed = pending_.front();
    pending_.clear();
    float* const out = delta2_.ensure(tokens_ * delta_stride_);
    feed_forward(layer, layer.mlp_norm ? layer.mlp_norm : layer.attn_norm, out);
    pending_ = {mixed, {out, layer.mlp_post_norm, layer.mlp_scale}};
  } else {
    if (layer.has_mixer()) run_mixer(l, step, cache);
    if (layer.has_feed_forward) {
      feed_forward(layer, layer.mlp_norm, delta_.data());
      pending_ = {{delta_.data(), layer.mlp_post_norm, layer.mlp_scale}};
    }
  }
  if (layer.input_gate) add_layer_input(l);
  pending_.back().after = layer.scale;
}

// Adds the pending residuals to x. The time at which this happens does not change any sum.
void Decoder::apply_residuals() {
  if (tokens_ > 0 && !pending_.empty()) {
    for_each_token(tokens_, [&](int64_t t, int thread) {
      apply_residual(t, scratch_.data() + thread * scratch_width_);
    });
  }
  pending_.clear();
}

// Restores the last row's x as saved by the step that computed the layers before this slice.
void Decoder::restore_partial_row(const StepInput& step) {
  const auto last = static_cast<size_t>(step.rows() - 1);
  const int64_t first = step.row_start[last], count = step.row_start[last + 1] - first;
  const PartialRow wanted{step.slice.sequence, step.context_len[last], count, step.slice.begin};
  for (size_t i = 0; i < 2; ++i) {
    if (!partial_rows_[i].same(wanted)) continue;
    std::memcpy(x_.data() + first * model_.hidden, partial_rows_[i].x.data(),
                static_cast<size_t>(count * model_.hidden) * sizeof(float));
    restored_ = i;
    return;
  }
  throw internal_error("slice: no step left the row's input of layer " +
                       std::to_string(step.slice.begin), "slice");
}

// Saves the last row's x for the step that continues. What this step resumed from is kept too, because
// the step may be computed again.
void Decoder::save_partial_row(const StepInput& step) {
  const auto last = static_cast<size_t>(step.rows() - 1);
  const int64_t first = step.row_start[last], count = step.row_start[last + 1] - first;
  PartialRow& left = partial_rows_[step.slice.begin > 0 ? 1 - restored_ : 0];
  left.sequence = -1;  // invalid while it is written
  std::memcpy(left.x.ensure(count * model_.hidden), x_.data() + first * model_.hidden,
              static_cast<size_t>(count * model_.hidden) * sizeof(float));
  left.start = step.context_len[last];
  left.count = count;
  left.layer = step.slice.end;
  left.sequence = step.slice.sequence;
}

void Decoder::embed(const StepInput& step, const std::vector<int32_t>& token_ids) {
  if (tokens_ == 0) return;
  for_each_token(tokens_, [&](int64_t t, int thread) {
    const auto at = static_cast<size_t>(t);
    float* out = x_.data() + t * model_.hidden;
    embedding_row(model_.embedding, token_ids[at], model_.hidden, out);
    if (model_.embed_scale != 1.0f) kernels_.scale(out, model_.embed_scale, model_.hidden);
    if (model_.positions != nullptr) {
      float* row = scratch_.data() + thread * scratch_width_;
      kernels_.unpack_row(*model_.positions, positions_[at], row);
      kernels_.add(out, row, model_.hidden);
    }
    if (model_.types != nullptr) {
      float* row = scratch_.data() + thread * scratch_width_;
      const auto of_row = static_cast<size_t>(row_of_[at]);
      const int64_t second = step.second.empty() ? 0 : step.second[of_row];
      kernels_.unpack_row(*model_.types, second > 0 && positions_[at] >= second, row);
      kernels_.add(out, row, model_.hidden);
    }
    if (model_.embed_norm) apply_norm(model_.embed_norm, out, out);
  });
}

void Decoder::embedding_row(const Embedding& from, int64_t id, int64_t width, float* out) const {
  if (from.packed != nullptr) {
    kernels_.unpack_row(*from.packed, id, out);
  } else {
    kernels_.to_float(from.type, from.source + id * from.row_bytes, width, out);
  }
}

void Decoder::embed_inputs(const std::vector<int32_t>& token_ids) {
  if (tokens_ == 0) return;
  const LayerInputs& in = model_.inputs;
  const int64_t total = in.projection.weight->n;
  float* const inputs = inputs_.ensure(tokens_ * total);
  pack_rows(x_.data(), model_.hidden, in.projection);
  multiply({{&in.projection, inputs, total, 0, tokens_}});
  for_each_token(tokens_, [&](int64_t t, int thread) {
    float *const row = inputs + t * total, *const own = scratch_.data() + thread * scratch_width_;
    embedding_row(in.embedding, token_ids[static_cast<size_t>(t)], total, own);
    kernels_.scale(row, in.projection_scale, total);
    for (int64_t at = 0; at < total; at += in.width) {
      kernels_.rms_norm(row + at, in.norm.weight, model_.norm_eps, in.width, row + at);
    }
    kernels_.add_scaled(row, own, in.embed_scale, total);
    kernels_.scale(row, in.sum_scale, total);
  });
}

void Decoder::add_layer_input(size_t l) {
  const DecoderLayer& layer = model_.layers[l];
  const LayerInputs& in = model_.inputs;
  const int64_t total = in.projection.weight->n;
  add_norm_pack({}, act_bit(layer.input_gate));
  multiply({{&layer.input_gate, mlp_.data(), mlp_width_, 0, tokens_}});
  const float* const inputs = inputs_.data() + static_cast<int64_t>(l) * in.width;
  for_each_token(tokens_, [&](int64_t t, int thread) {
    float* const out = scratch_.data() + thread * scratch_width_;
    kernels_.activate(in.activation, mlp_.data() + t * mlp_width_, inputs + t * total, in.width,
                      out);
    pack_row(act_bit(layer.input_out), out, in.width, t, acts_);
  });
  multiply({{&layer.input_out, delta_.data(), delta_stride_, 0, tokens_}});
  pending_ = {{delta_.data(), layer.input_post}};
}

void Decoder::run_mixer(size_t l, const StepInput& step, KvCache& cache) {
  const DecoderLayer& layer = model_.layers[l];
  Residual attended{delta_.data(), layer.attn_post_norm, layer.mixer_scale};
  Residual recurred = attended;
  if (layer.has_attention) {
    const LayerKv keys = layer_kv(l, cache);
    layer.latent ? attend_latent(layer, *keys.kv, *keys.plan) : run_attention(l, keys, cache);
    recurred.scale = layer.parallel_mixer_scale;
  }
  if (layer.recurrent) {
    float* const out = layer.has_attention ? delta2_.ensure(tokens_ * delta_stride_) : delta_.data();
    add_norm_pack(layer.attn_norm, recurrent_acts(*layer.recurrent));
    run_recurrent(*layer.recurrent, step, cache.states(), out);
    recurred.values = out;
  }
  pending_.clear();
  if (layer.has_attention) pending_.push_back(attended);
  if (layer.recurrent) pending_.push_back(recurred);
}

Decoder::LayerKv Decoder::layer_kv(size_t l, const KvCache& cache) const {
  const DecoderLayer& layer = model_.layers[l];
  return {&cache.layer(layer.kv_layer < 0 ? static_cast<int>(l) : layer.kv_layer),
          attends_[static_cast<size_t>(layer_plan_[l])].get()};
}

void Decoder::run_attention(size_t l, const LayerKv& keys, const KvCache& cache) {
  const DecoderLayer& layer = model_.layers[l];
  const KvLayer& kv = *keys.kv;
  Attend& plan = *keys.plan;
  const AttnShape& a = layer.attention;
  const int64_t q = int64_t{a.heads} * a.head_dim, k = int64_t{a.kv_heads} * a.head_dim;
  add_norm_pack(layer.attn_norm, attention_acts(layer));
  const Product products[] = {{&layer.q, qkv_.data(), qkv_width_, 0, tokens_},
                              {&layer.k, qkv_.data() + q, qkv_width_, 0, tokens_},
                              {&layer.v, qkv_.data() + q + k, qkv_width_, 0, tokens_}};
  plan.prefetch_keys(kv);
  multiply(products, layer.v ? 3 : layer.k ? 2 : 1, acts_);
  if (layer.gate) {
    multiply({{&layer.gate, gate_.ensure(tokens_ * heads_width_), heads_width_, 0, tokens_}});
  }
  write_kv(layer, kv);
  prefetch_weights({&layer.o});
  plan.run(kv, qkv_.data(), qkv_width_, layer.sinks, heads_.data(), heads_width_);
  prefetch_next_kv(l, cache);
  if (layer.gate) {
    for_each_token(tokens_, [&](int64_t t, int) {
      float* const heads = heads_.data() + t * heads_width_;
      kernels_.activate(Activation::Sigmoid, gate_.data() + t * heads_width_, heads, q, heads);
    });
  }
  pack_rows(heads_.data(), heads_width_, layer.o);
  prefetch_feed_forward(layer);
  multiply({{&layer.o, delta_.data(), delta_stride_, 0, tokens_}});
}

// Applies norms and RoPE to Q and K and writes K and V to the cache, unless another layer owns them.
void Decoder::write_kv(const DecoderLayer& layer, const KvLayer& kv) {
  const AttnShape& a = layer.attention;
  if (!layer.k) {
    return for_each_token(tokens_, [&](int64_t t, int) {
      norm_and_rope_heads(layer, positions_[static_cast<size_t>(t)], {0, a.kv_heads},
                  qkv_.data() + t * qkv_width_);
    });
  }
  const int64_t q_width = int64_t{a.heads} * a.head_dim, k_width = int64_t{a.kv_heads} * a.head_dim;
  const int64_t head_bytes =
      kernels_.kv_block_bytes(kv.type, kv.block_size, 1, kv.head_dim, kv.v_dim);
  // A token's keys touch as many cache lines as they have values, so for few tokens work is split by
  // head.
  const bool whole = layer.qk_norm.q && layer.qk_norm.scope == NormScope::Full;
  const int64_t shares = whole || tokens_ > pool_.threads() ? 1 : a.kv_heads;
  for_each_write(layer, kv, shares, [&](const Write& w) {
    const Heads heads{w.share * a.kv_heads / shares, (w.share + 1) * a.kv_heads / shares};
    float* const q = qkv_.data() + w.token * qkv_width_;
    norm_and_rope_heads(layer, w.position, heads, q);
    KvLayer part = kv;
    part.base += heads.first * head_bytes;
    part.kv_heads = static_cast<int32_t>(heads.end - heads.first);
    const float* const k = q + q_width + heads.first * a.head_dim;
    kernels_.kv_write(part, w.block, w.position % kv.block_size, k, k + k_width);
  });
}

void Decoder::for_each_write(const DecoderLayer& layer, const KvLayer& kv, int64_t shares,
                         const std::function<void(const Write&)>& body) {
  const auto g = static_cast<size_t>(layer.cache_group);
  const auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const WriteItem& item = writes_[static_cast<size_t>(i / shares)];
      const int64_t column = item.position / kv.block_size;
      const int64_t block = tables_[g][static_cast<size_t>(item.row * table_stride_[g] + column)];
      for (int64_t j = 0; j < item.count; ++j) {
        body({item.token + j, item.position + j, block, i % shares});
      }
    }
  };
  pool_.run_tapered(write_count_ * shares, 1, run);
}

// Applied to a range of KV heads of a token, and to the query heads that read them, between the QKV
// product and the cache.
void Decoder::norm_and_rope_heads(const DecoderLayer& layer, int64_t position, const Heads& heads,
                          float* qkv) const {
  const AttnShape& a = layer.attention;
  const int64_t dim = a.head_dim, group = a.heads / a.kv_heads, count = heads.end - heads.first;
  const bool own = layer.kv_layer < 0;
  float *const q = qkv + heads.first * group * dim,
               *const k = own ? qkv + (a.heads + heads.first) * dim : nullptr;
  if (own) {
    float* const v = k + a.kv_heads * dim;
    if (!layer.v) std::copy_n(k, count * dim, v);
    for (int64_t h = 0; layer.qk_norm.v && h < count; ++h) {
      kernels_.rms_norm(v + h * dim, layer.qk_norm.v.weight, model_.norm_eps, dim, v + h * dim);
    }
  }
  if (!layer.qk_norm.after_rope) norm_heads(layer, heads, q, k);
  if (layer.clip > 0) {
    kernels_.clamp(q, layer.clip, count * group * dim);
    if (own) {
      kernels_.clamp(k, layer.clip, count * dim);
      kernels_.clamp(k + a.kv_heads * dim, layer.clip, count * dim);
    }
  }
  if (layer.rope >= 0) {
    const RopeTable& rope = model_.ropes[static_cast<size_t>(layer.rope)];
    const float* cos_sin = rope.at(position);
    kernels_.rope(q, count * group, dim, rope.dim(), cos_sin);
    if (own) kernels_.rope(k, count, dim, rope.dim(), cos_sin);
  }
  if (layer.qk_norm.after_rope) norm_heads(layer, heads, q, k);
  if (layer.temperature.floor > 0) kernels_.scale(q, layer.temperature.at(position), count * group * dim);
}

void Decoder::norm_heads(const DecoderLayer& layer, const Heads& heads, float* q, float* k) const {
  const QkNorm& n = layer.qk_norm;
  if (!n.q) return;
  const AttnShape& a = layer.attention;
  const auto each = [&](const Norm& norm, int64_t first, int64_t count, float* x) {
    const bool full = n.scope == NormScope::Full;
    const int64_t width = full ? count * a.head_dim : a.head_dim;
    const int64_t step = n.scope == NormScope::Heads ? a.head_dim : 0;
    for (int64_t h = first; h < (full ? first + 1 : first + count); ++h, x += width) {
      const float* bias = norm.bias == nullptr ? nullptr : norm.bias + h * step;
      if (n.layer_norm) {
        kernels_.layer_norm(x, norm.weight + h * step, bias, model_.norm_eps, width, x);
      } else {
        kernels_.rms_norm(x, norm.weight + h * step, model_.norm_eps, width, x);
      }
    }
  };
  const int64_t group = a.heads / a.kv_heads, count = heads.end - heads.first;
  each(n.q, heads.first * group, count * group, q);
  if (k != nullptr) each(n.k, heads.first, count, k);
}

void Decoder::apply_norm(const Norm& norm, const float* x, float* out) const {
  if (model_.layer_norms) {
    kernels_.layer_norm(x, norm.weight, norm.bias, model_.norm_eps, model_.hidden, out);
  } else {
    kernels_.rms_norm(x, norm.weight, model_.norm_eps, model_.hidden, out);
  }
}

void Decoder::apply_residual(int64_t token, float* scratch) {
  float* x = x_.data() + token * model_.hidden;
  for (const Residual& delta : pending_) {
    const float* values = delta.values + token * delta_stride_;
    if (delta.post && !model_.norm_sums) {
      apply_norm(delta.post, values, scratch);
      values = scratch;
    }
    const float scale = model_.residual_scale * delta.scale;
    if (scale == 1.0f) {
      kernels_.add(x, values, model_.hidden);
    } else {
      kernels_.add_scaled(x, values, scale, model_.hidden);
    }
    if (delta.post && model_.norm_sums) apply_norm(delta.post, x, x);
    if (delta.after != 1.0f) kernels_.scale(x, delta.after, model_.hidden);
  }
}

void Decoder::add_norm_pack(const Norm& norm, unsigned acts, float* keep) {
  for_each_token(tokens_, [&](int64_t t, int thread) {
    const float* x = x_.data() + t * model_.hidden;
    float* scratch = scratch_.data() + thread * scratch_width_;
    apply_residual(t, scratch);
    if (norm) {
      apply_norm(norm, x, scratch);
      x = scratch;
    }
    pack_row(acts, x, model_.hidden, t, acts_);
    if (keep != nullptr) std::copy_n(x, model_.hidden, keep + t * model_.hidden);
  });
  pending_.clear();
}

void Decoder::pack_rows(const float* rows, int64_t stride, const Linear& to) {
  const unsigned acts = act_bit(to);
  for_each_token(tokens_, [&](int64_t t, int) {
    pack_row(acts, rows + t * stride, to.weight->k, t, acts_);
  });
}

void Decoder::pack_row(unsigned types, const float* row, int64_t k, int64_t index, Acts& acts) {
  for (int act = 0; act < kActTypes; ++act) {
    if (types >> act & 1u) {
      kernels_.pack_act(static_cast<ActType>(act), row, k, acts.row(act, index));
    }
  }
}

void Decoder::hidden(const int64_t* tokens, int64_t count, float* out) {
  for_each_token(count, [&](int64_t i, int) {
    const float* x = x_.data() + tokens[i] * model_.hidden;
    float* to = out + i * model_.hidden;
    if (model_.final_norm) {
      apply_norm(model_.final_norm, x, to);
    } else {
      std::memcpy(to, x, static_cast<size_t>(model_.hidden) * sizeof(float));
    }
  });
}

void Decoder::logits(const int64_t* tokens, int64_t count, float* out) {
  check_cancelled();
  if (model_.lm_head.weight == nullptr) throw internal_error("the model has no output layer");
  wait_until_packed(model_.head_packed_needed);
  const unsigned acts = act_bit(model_.lm_head);
  for_each_token(count, [&](int64_t i, int thread) {
    float* normed = scratch_.data() + thread * scratch_width_;
    apply_norm(model_.final_norm, x_.data() + tokens[i] * model_.hidden, normed);
    pack_row(acts, normed, model_.hidden, i, acts_);
  });
  prefetch_layer(0);
  multiply({{&model_.lm_head, out, model_.vocab, 0, count}});
  if (model_.logit_scale == 1.0f && model_.logit_softcap == 0.0f) return;
  for_each_token(count, [&](int64_t i, int) {
    float* row = out + i * model_.vocab;
    if (model_.logit_scale != 1.0f) kernels_.scale(row, model_.logit_scale, model_.vocab);
    if (model_.logit_softcap > 0.0f) kernels_.softcap(row, model_.logit_softcap, model_.vocab);
  });
}

}  // namespace tidemill
