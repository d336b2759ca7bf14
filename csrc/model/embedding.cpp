#include "model/embedding.h"

#include <algorithm>

namespace tidemill {

namespace {

void read_row(const KernelTable& kernels, const Embedding& from, int64_t id, int64_t width,
              float* out) {
  if (from.packed != nullptr) {
    kernels.unpack_row(*from.packed, id, out);
  } else {
    kernels.to_float(from.type, from.source + id * from.row_bytes, width, out);
  }
}

// The vector given in place of the token's embedding, or null.
const float* override_of(const StepInput& step, int64_t token, int64_t width) {
  const std::vector<int32_t>& tokens = step.override_tokens;
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), token);
  if (at == tokens.end() || *at != token) return nullptr;
  return step.override_rows.data() + (at - tokens.begin()) * width;
}

}  // namespace

EmbeddingBlock::EmbeddingBlock(StepContext& context, ResidualStream& stream)
    : context_(context), stream_(stream) {}

void EmbeddingBlock::run(const std::vector<int32_t>& token_ids) {
  const KernelTable& kernels = context_.kernels;
  const DecoderModel& model = context_.model;
  const std::vector<int32_t>& second_of_row = context_.step->second;
  const bool shards = context_.group != nullptr && model.embedding.packed != nullptr;
  if (shards) read_shards(token_ids);
  context_.for_each_token(context_.tokens, [&](int64_t t, int thread) {
    const auto at = static_cast<size_t>(t);
    float* const out = stream_.row(t);
    float* const row = context_.scratch(thread);
    if (const float* const given = override_of(*context_.step, t, model.hidden)) {
      std::copy_n(given, model.hidden, out);
    } else {
      if (!shards) read_row(kernels, model.embedding, token_ids[at], model.hidden, out);
      if (context_.adapters != nullptr) apply_adapter(t, token_ids[at], out);
      if (model.embed_scale != 1.0f) kernels.scale(out, model.embed_scale, model.hidden);
    }
    if (model.positions != nullptr) {
      kernels.unpack_row(*model.positions, context_.positions[at], row);
      kernels.add(out, row, model.hidden);
    }
    if (model.types != nullptr) {
      const auto of_row = static_cast<size_t>(context_.row_of[at]);
      const int64_t second = second_of_row.empty() ? 0 : second_of_row[of_row];
      kernels.unpack_row(*model.types, second > 0 && context_.positions[at] >= second, row);
      kernels.add(out, row, model.hidden);
    }
    if (model.embed_norm) context_.apply_norm(context_.norm_of(model.embed_norm, t), out, out);
  });
}

void EmbeddingBlock::read_shards(const std::vector<int32_t>& token_ids) {
  const DecoderModel& model = context_.model;
  const Bounds bounds = model.shard.bounds(model.vocab);
  owner_.clear();
  for (int64_t t = 0; t < context_.tokens; ++t) {
    const auto after = std::upper_bound(bounds.begin(), bounds.end(), token_ids[static_cast<size_t>(t)]);
    owner_.push_back(static_cast<int>(after - bounds.begin()) - 1);
  }
  context_.for_each_token(context_.tokens, [&](int64_t t, int) {
    const auto at = static_cast<size_t>(t);
    if (owner_[at] != model.shard.rank) return;
    const int64_t row = token_ids[at] - bounds[static_cast<size_t>(model.shard.rank)];
    context_.kernels.unpack_row(*model.embedding.packed, row, stream_.row(t));
  });
  context_.group->gather_rows(context_.pool, stream_.row(0), model.hidden, model.hidden, owner_);
}

void EmbeddingBlock::apply_adapter(int64_t token, int64_t id, float* row) const {
  const Adapter* const adapter = context_.adapters->of(token);
  if (adapter != nullptr && adapter->embedding() != nullptr) adapter->embed(id, context_.model.hidden, row);
}

LayerInputsBlock::LayerInputsBlock(StepContext& context, ResidualStream& stream)
    : context_(context), stream_(stream), gate_width_(row_stride(context.model.inputs.width)) {
  const LayerInputs& in = context.model.inputs;
  if (in.width == 0) return;
  context.reads(in.projection);
  context.needs_scratch(in.projection.weight->n);
  for (const DecoderLayer& layer : context.model.layers) {
    context.reads(layer.input_gate);
    context.reads(layer.input_out);
  }
}

void LayerInputsBlock::prepare(const std::vector<int32_t>& token_ids) {
  const KernelTable& kernels = context_.kernels;
  const LayerInputs& in = context_.model.inputs;
  const int64_t tokens = context_.tokens, total = in.projection.weight->n;
  float* const inputs = inputs_.ensure(tokens * total);
  context_.pack_rows(stream_.row(0), context_.model.hidden, in.projection);
  context_.products.multiply({{&in.projection, inputs, total, 0, tokens}}, context_.acts);
  context_.for_each_token(tokens, [&](int64_t t, int thread) {
    float *const row = inputs + t * total, *const own = context_.scratch(thread);
    read_row(kernels, in.embedding, token_ids[static_cast<size_t>(t)], total, own);
    kernels.scale(row, in.projection_scale, total);
    for (int64_t at = 0; at < total; at += in.width) {
      kernels.rms_norm(row + at, in.norm.weight, context_.model.norm_eps, in.width, row + at);
    }
    kernels.add_scaled(row, own, in.embed_scale, total);
    kernels.scale(row, in.sum_scale, total);
  });
}

void LayerInputsBlock::run(size_t l) {
  const DecoderLayer& layer = context_.model.layers[l];
  const LayerInputs& in = context_.model.inputs;
  const int64_t tokens = context_.tokens, total = in.projection.weight->n;
  float* const gate = gate_.ensure(tokens * gate_width_);
  stream_.norm_and_pack({}, act_bit(layer.input_gate));
  context_.products.multiply({{&layer.input_gate, gate, gate_width_, 0, tokens}}, context_.acts);
  const float* const inputs = inputs_.data() + static_cast<int64_t>(l) * in.width;
  context_.for_each_token(tokens, [&](int64_t t, int thread) {
    float* const out = context_.scratch(thread);
    context_.kernels.activate(in.activation, gate + t * gate_width_, inputs + t * total, in.width,
                              out);
    context_.pack_row(act_bit(layer.input_out), out, in.width, t, context_.acts);
  });
  float* const out = stream_.output();
  context_.products.multiply({{&layer.input_out, out, stream_.stride(), 0, tokens}}, context_.acts);
  stream_.pending = {{out, layer.input_post}};
}

}  // namespace tidemill
