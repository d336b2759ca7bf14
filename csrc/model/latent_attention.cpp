#include "model/latent_attention.h"

#include <algorithm>
#include <cstring>

namespace tidemill {

void LatentAttentionBlock::add(const DecoderLayer& layer) {
  const Latent& l = *layer.latent;
  const AttnShape& a = layer.attention;
  const int64_t heads = a.heads;
  absorbed_width_ = std::max(absorbed_width_, row_stride(heads * a.head_dim));
  heads_width_ = std::max(heads_width_, row_stride(heads * a.v_dim));
  queries_width_ = std::max(queries_width_, row_stride(heads * std::max(l.query(), l.value)));
  latents_width_ = std::max(latents_width_, row_stride(l.rank + l.rope));
  head_k_ = std::max({head_k_, l.nope, l.rank});
  for (const Linear* linear : {&l.kv_down, &l.q_down, &layer.q, &layer.o}) context_.reads(*linear);
  if (l.q_down) low_rank_width_ = std::max(low_rank_width_, row_stride(l.q_down.weight->n));
}

void LatentAttentionBlock::run(size_t l, float* out) {
  const DecoderLayer& layer = context_.model.layers[l];
  const auto [kv, plan] = kv_.layer(l);
  const int64_t all = context_.step->tokens();
  absorbed_.ensure(all * absorbed_width_);
  heads_.ensure(all * heads_width_);
  project(layer);
  write(layer, *kv);
  absorb_queries(layer);
  plan->run(*kv, absorbed_.data(), absorbed_width_, layer.sinks, heads_.data(), heads_width_);
  project_back(layer);
  context_.pack_rows(queries_.data(), queries_width_, layer.o);
  context_.products.multiply({{&layer.o, out, stream_.stride(), 0, context_.tokens}}, context_.acts);
}

void LatentAttentionBlock::project(const DecoderLayer& layer) {
  const Latent& l = *layer.latent;
  const int64_t tokens = context_.tokens;
  float *const queries = queries_.ensure(tokens * queries_width_),
        *const latents = latents_.ensure(tokens * latents_width_);
  const Product kv_down{&l.kv_down, latents, latents_width_, 0, tokens};
  const Product q{&layer.q, queries, queries_width_, 0, tokens};
  const Linear& first = l.q_down ? l.q_down : layer.q;
  stream_.norm_and_pack(layer.attn_norm, act_bit(l.kv_down) | act_bit(first));
  if (!l.q_down) return context_.products.multiply({kv_down, q}, context_.acts);
  const int64_t rank = l.q_down.weight->n;
  float* const low = low_rank_.ensure(tokens * low_rank_width_);
  context_.products.multiply({kv_down, {&l.q_down, low, low_rank_width_, 0, tokens}}, context_.acts);
  context_.for_each_token(tokens, [&](int64_t t, int) {
    float* row = low + t * low_rank_width_;
    context_.kernels.rms_norm(row, context_.norm_of(l.q_norm, t).weight, l.norm_eps, rank, row);
    context_.pack_row(act_bit(layer.q), row, rank, t, context_.acts);
  });
  context_.products.multiply({q}, context_.acts);
}

void LatentAttentionBlock::write(const DecoderLayer& layer, const KvLayer& kv) {
  const KernelTable& kernels = context_.kernels;
  const Latent& l = *layer.latent;
  const int64_t heads = layer.attention.heads;
  kv_.for_each_write(layer, kv, 1, [&](const StepKv::Write& w) {
    float* latent = latents_.data() + w.token * latents_width_;
    kernels.rms_norm(latent, context_.norm_of(l.kv_norm, w.token).weight, l.norm_eps, l.rank, latent);
    if (layer.rope >= 0) {
      const RopeTable& rope = context_.model.ropes[static_cast<size_t>(layer.rope)];
      const float* cos_sin = rope.at(w.position);
      kernels.rope(latent + l.rank, 1, l.rope, rope.dim(), cos_sin);
      kernels.rope(queries_.data() + w.token * queries_width_ + l.nope, heads, l.query(), rope.dim(),
                   cos_sin);
    }
    kernels.kv_write(kv, w.block, w.position % kv.block_size, latent, latent);
  });
}

void LatentAttentionBlock::absorb_queries(const DecoderLayer& layer) {
  const Latent& l = *layer.latent;
  const AttnShape& a = layer.attention;
  unsigned acts = 0;
  for (size_t h = 0; h < l.k_up.size(); ++h) acts |= act_bit(l.k_up[h]) | act_bit(l.v_up[h]);
  head_acts_.adapters = context_.adapters_of(head_adapters_, context_.tokens * a.heads, [&](int64_t i) {
    return i % context_.tokens;
  });
  head_acts_.ensure(acts, context_.tokens * a.heads);
  context_.for_each_token(context_.tokens, [&](int64_t t, int) {
    const float* query = queries_.data() + t * queries_width_;
    float* out = absorbed_.data() + t * absorbed_width_;
    for (int64_t h = 0; h < a.heads; ++h, query += l.query(), out += a.head_dim) {
      context_.pack_row(act_bit(l.k_up[static_cast<size_t>(h)]), query, l.nope,
                        h * context_.tokens + t, head_acts_);
      std::memcpy(out + l.rank, query + l.nope, static_cast<size_t>(l.rope) * sizeof(float));
    }
  });
  multiply_heads(l.k_up, absorbed_.data(), a.head_dim, absorbed_width_);
}

void LatentAttentionBlock::project_back(const DecoderLayer& layer) {
  const Latent& l = *layer.latent;
  const int64_t heads = layer.attention.heads;
  context_.for_each_token(context_.tokens, [&](int64_t t, int) {
    for (int64_t h = 0; h < heads; ++h) {
      context_.pack_row(act_bit(l.v_up[static_cast<size_t>(h)]),
                        heads_.data() + t * heads_width_ + h * l.rank, l.rank,
                        h * context_.tokens + t, head_acts_);
    }
  });
  multiply_heads(l.v_up, queries_.data(), l.value, queries_width_);
}

void LatentAttentionBlock::multiply_heads(const std::vector<Linear>& linears, float* out, int64_t step,
                                     int64_t width) {
  products_.clear();
  int64_t row = 0;
  for (const Linear& linear : linears) {
    products_.push_back({&linear, out, width, row, context_.tokens});
    out += step;
    row += context_.tokens;
  }
  context_.products.multiply(products_.data(), products_.size(), head_acts_);
}

}  // namespace tidemill
