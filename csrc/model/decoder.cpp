#include "model/decoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/error.h"

namespace tidemill {

namespace {

// First token of the last row; a step with a slice has one.
int64_t last_row_start(const StepInput& step) {
  return step.row_start[static_cast<size_t>(step.rows() - 1)];
}

Part attention_part(const DecoderLayer& layer) {
  if (layer.latent) return Part::LatentAttention;
  return layer.attention.window > 0 ? Part::WindowAttention : Part::Attention;
}

}  // namespace

Decoder::Decoder(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model, Latch& packed,
                 std::function<bool()> cancelled, Group* group, Stage* stage)
    : model_(model),
      packed_(packed),
      stage_(stage),
      cancelled_(std::move(cancelled)),
      context_(kernels, pool, model, group),
      stream_(context_),
      kv_(context_),
      embedding_(context_, stream_),
      layer_inputs_(context_, stream_),
      attention_(context_, stream_, kv_),
      latent_attention_(context_, stream_, kv_),
      recurrent_(context_, stream_),
      feed_forward_(context_, stream_),
      experts_(context_, stream_, feed_forward_) {
  context_.reads(model.lm_head);
  for (const DecoderLayer& layer : model.layers) add_blocks(layer);
  context_.finish();
  latent_attention_.finish();
  feed_forward_.finish();
  experts_.finish();
}

void Decoder::add_blocks(const DecoderLayer& layer) {
  if (layer.recurrent) recurrent_.add(*layer.recurrent);
  if (layer.has_attention) layer.latent ? latent_attention_.add(layer) : attention_.add(layer);
  if (!layer.has_feed_forward) return;
  layer.experts ? experts_.add(*layer.experts) : feed_forward_.add(layer.mlp);
}

void Decoder::check_cancelled() const {
  if (cancelled_()) throw Error(ErrorKind::Unavailable, "the backend was closed during the step");
}

void Decoder::wait_until_packed(int64_t count) {
  if (packed_.count() >= count) return;
  const ProfiledPart part(context_.pool.profile(), Part::AwaitWeights);
  const auto start = std::chrono::steady_clock::now();
  packed_.await(count);
  packing_wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Decoder::begin(const StepInput& step, KvCache& cache) {
  context_.begin(step, cache);
  stream_.begin(step.tokens());
  kv_.begin();
  recurrent_.begin();
  layer_hidden_.clear();
  hidden_tokens_.clear();
  if (!step.hidden_layers.empty()) hidden_tokens_ = step.hidden_tokens();
  const auto last = std::max_element(context_.positions.begin(), context_.positions.end());
  const int64_t reached = last == context_.positions.end() ? 0 : *last + 1;
  for (RopeTable& rope : model_.ropes) rope.grow(reached, context_.pool);
}

void Decoder::compute_rows(int64_t rows) {
  context_.tokens = context_.step->row_start[static_cast<size_t>(rows)];
  kv_.compute_rows(rows);
}

void Decoder::forward(const StepInput& step, const std::vector<int32_t>& token_ids,
                      KvCache& cache) {
  const auto layers = static_cast<int64_t>(model_.layers.size());
  const LayerSlice slice = step.slice ? step.slice : LayerSlice{-1, 0, layers};
  begin(step, cache);
  if (model_.embeds) {
    wait_until_packed(model_.embedding_packed_needed);
    embed(token_ids, step.rows() - (slice.begin > 0));  // rows that start at the first layer
  } else {
    compute_rows(step.rows());
    receive();
  }
  for (int64_t l = 0; l < layers; ++l) {
    check_cancelled();
    if (l == slice.begin && l > 0) {
      stream_.apply();
      partial_rows_.restore(step, model_.hidden, stream_.row(last_row_start(step)));
      compute_rows(step.rows());
    } else if (l == slice.end) {
      stream_.apply();
      partial_rows_.save(step, model_.hidden, stream_.row(last_row_start(step)));
      compute_rows(step.rows() - 1);
    }
    keep_hidden(l);
    if (context_.tokens > 0 && !skipped(l)) run_layer(static_cast<size_t>(l));
  }
  stream_.apply();
  keep_hidden(layers);
  if (stage_ != nullptr) send();
}

void Decoder::receive() {
  const ProfiledPart part(context_.pool.profile(), Part::AwaitStage);
  const StepInput& step = *context_.step;
  stage_->receive(step.step_id, step.tokens(), model_.hidden, [&](int64_t i) { return stream_.row(i); });
}

// The next stage computes all tokens; the first one needs those that results are computed of.
void Decoder::send() {
  const ProfiledPart part(context_.pool.profile(), Part::AwaitStage);
  const StepInput& step = *context_.step;
  const std::vector<int64_t> tokens = stage_->last() ? step.result_tokens() : std::vector<int64_t>{};
  const int64_t count = stage_->last() ? static_cast<int64_t>(tokens.size()) : step.tokens();
  stage_->send(step.step_id, count, model_.hidden, [&](int64_t i) {
    return stream_.row(stage_->last() ? tokens[static_cast<size_t>(i)] : i);
  });
}

void Decoder::receive_results(const StepInput& step, KvCache& cache) {
  const ProfiledPart part(context_.pool.profile(), Part::AwaitStage);
  context_.begin(step, cache);
  stream_.begin(step.tokens());
  context_.tokens = step.tokens();
  const std::vector<int64_t> tokens = step.result_tokens();
  stage_->receive(step.step_id, static_cast<int64_t>(tokens.size()), model_.hidden,
                  [&](int64_t i) { return stream_.row(tokens[static_cast<size_t>(i)]); });
}

bool Decoder::skipped(int64_t l) const {
  const std::vector<int32_t>& skip = context_.step->skip;
  return std::binary_search(skip.begin(), skip.end(), static_cast<int32_t>(l));
}

size_t Decoder::layer_after(size_t l) const {
  do ++l;
  while (l < model_.layers.size() && skipped(static_cast<int64_t>(l)));
  return l;
}

void Decoder::keep_hidden(int64_t l) {
  const std::vector<int32_t>& layers = context_.step->hidden_layers;
  if (!std::binary_search(layers.begin(), layers.end(), l)) return;
  stream_.apply();
  for (const int64_t token : hidden_tokens_) {
    const float* const x = stream_.row(token);
    layer_hidden_.insert(layer_hidden_.end(), x, x + model_.hidden);
  }
}

// Embeds the first `rows` rows. Inputs of the layers are computed of all rows in any case: no step
// keeps them for the next.
void Decoder::embed(const std::vector<int32_t>& token_ids, int64_t rows) {
  const bool inputs = model_.inputs.width > 0;
  compute_rows(inputs ? context_.step->rows() : rows);
  if (context_.tokens == 0) return;
  const ProfiledPart part(context_.pool.profile(), Part::Embedding);
  embedding_.run(token_ids);
  if (!inputs) return;
  layer_inputs_.prepare(token_ids);
  compute_rows(rows);
}

void Decoder::run_layer(size_t l) {
  const DecoderLayer& layer = model_.layers[l];
  wait_until_packed(layer.packed_needed);
  if (layer.parallel) {  // both blocks read the same x
    run_mixer(l);
    const Residual mixed = stream_.pending.front();
    stream_.pending.clear();
    float* const out = stream_.second_output();
    run_feed_forward(l, layer.mlp_norm ? layer.mlp_norm : layer.attn_norm, out);
    stream_.pending = {mixed, {out, layer.mlp_post_norm, layer.mlp_scale}};
  } else {
    if (layer.has_mixer()) run_mixer(l);
    if (layer.has_feed_forward) {
      float* const out = stream_.output();
      run_feed_forward(l, layer.mlp_norm, out);
      stream_.pending = {{out, layer.mlp_post_norm, layer.mlp_scale}};
    }
  }
  if (layer.input_gate) {
    const ProfiledPart part(context_.pool.profile(), Part::LayerInputs, static_cast<int64_t>(l));
    layer_inputs_.run(l);
  }
  stream_.pending.back().after = layer.scale;
}

void Decoder::run_mixer(size_t l) {
  const DecoderLayer& layer = model_.layers[l];
  float* const out = stream_.output();
  Residual attended{out, layer.attn_post_norm, layer.mixer_scale};
  Residual recurred = attended;
  if (layer.has_attention) {
    const ProfiledPart part(context_.pool.profile(), attention_part(layer), static_cast<int64_t>(l));
    layer.latent ? latent_attention_.run(l, out)
                 : attention_.run(l, first_feed_forward_products(layer), out);
    recurred.scale = layer.parallel_scale;
  }
  if (layer.recurrent) {
    const ProfiledPart part(context_.pool.profile(), Part::Recurrent, static_cast<int64_t>(l));
    float* const to = layer.has_attention ? stream_.second_output() : out;
    recurrent_.run(*layer.recurrent, layer.attn_norm, to);
    recurred.values = to;
  }
  stream_.pending.clear();
  if (layer.has_attention) stream_.pending.push_back(attended);
  if (layer.recurrent) stream_.pending.push_back(recurred);
}

void Decoder::run_feed_forward(size_t l, const Norm& norm, float* out) {
  const DecoderLayer& layer = model_.layers[l];
  const ProfiledPart part(context_.pool.profile(), layer.experts ? Part::Experts : Part::FeedForward,
                          static_cast<int64_t>(l));
  const LinearList following = first_products(layer_after(l));
  if (layer.experts) return experts_.run(*layer.experts, norm, following, out);
  stream_.norm_and_pack(norm, input_acts(layer.mlp));
  feed_forward_.run(layer.mlp, following, out);
}

LinearList Decoder::first_products(size_t l) const {
  if (l >= model_.layers.size()) return {&model_.lm_head};
  const DecoderLayer& layer = model_.layers[l];
  if (layer.latent) return {&layer.latent->kv_down, &layer.latent->q_down};
  if (layer.has_attention) return {&layer.q, &layer.k, &layer.v};
  return layer.recurrent ? LinearList{} : first_feed_forward_products(layer);
}

LinearList Decoder::first_feed_forward_products(const DecoderLayer& layer) const {
  if (!layer.has_feed_forward) return {};
  if (layer.experts) return {&layer.experts->router};
  return FeedForwardBlock::first_products(layer.mlp, context_.tokens);
}

void Decoder::hidden(const int64_t* tokens, int64_t count, float* out) {
  const ProfiledPart part(context_.pool.profile(), Part::Head);
  context_.for_each_token(count, [&](int64_t i, int) {
    const float* x = stream_.row(tokens[i]);
    float* to = out + i * model_.hidden;
    if (model_.final_norm) {
      context_.apply_norm(context_.norm_of(model_.final_norm, tokens[i]), x, to);
    } else {
      std::memcpy(to, x, static_cast<size_t>(model_.hidden) * sizeof(float));
    }
  });
}

void Decoder::logits(const int64_t* tokens, int64_t count, float* out) {
  const KernelTable& kernels = context_.kernels;
  const ProfiledPart part(context_.pool.profile(), Part::Head);
  check_cancelled();
  if (!model_.lm_head) throw internal_error("the model has no output layer");
  wait_until_packed(model_.head_packed_needed);
  const unsigned acts = act_bit(model_.lm_head);
  const bool with_norm = model_.final_norm && !skipped(static_cast<int64_t>(model_.layers.size()));
  const auto token_of = [&](int64_t i) { return tokens[i]; };
  context_.acts.adapters = context_.adapters_of(logit_adapters_, count, token_of);
  context_.for_each_token(count, [&](int64_t i, int thread) {
    float* normed = context_.scratch(thread);
    const float* const x = stream_.row(tokens[i]);
    if (with_norm) context_.apply_norm(context_.norm_of(model_.final_norm, tokens[i]), x, normed);
    context_.pack_row(acts, with_norm ? normed : x, model_.hidden, i, context_.acts);
  });
  context_.products.prefetch(first_products(0), context_.tokens);
  const Shard& shard = model_.shard;
  context_.products.multiply({{&model_.lm_head, out + shard.first(model_.vocab), model_.vocab, 0, count}},
                             context_.acts);
  if (Group* const group = context_.group; group != nullptr) {
    group->gather(context_.pool, out, model_.vocab, count, shard.bounds(model_.vocab), true);
    if (!group->leads()) return;
  }
  if (model_.logit_scale == 1.0f && model_.logit_softcap == 0.0f) return;
  context_.for_each_token(count, [&](int64_t i, int) {
    float* row = out + i * model_.vocab;
    if (model_.logit_scale != 1.0f) kernels.scale(row, model_.logit_scale, model_.vocab);
    if (model_.logit_softcap > 0.0f) kernels.softcap(row, model_.logit_softcap, model_.vocab);
  });
}

}  // namespace tidemill
