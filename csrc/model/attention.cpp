#include "model/attention.h"

#include <algorithm>

namespace tidemill {

namespace {

unsigned input_acts(const DecoderLayer& layer) {
  unsigned acts = act_bit(layer.q);
  for (const Linear* part : {&layer.k, &layer.v, &layer.gate}) {
    if (*part) acts |= act_bit(*part);
  }
  return acts;
}

}  // namespace

void AttentionBlock::add(const DecoderLayer& layer) {
  const AttnShape& a = layer.attention;
  const int64_t q = int64_t{a.heads} * a.head_dim, kv = int64_t{a.kv_heads} * a.head_dim;
  qkv_width_ = std::max(qkv_width_, row_stride(q + 2 * kv));
  heads_width_ = std::max(heads_width_, row_stride(int64_t{a.heads} * a.v_dim * (layer.split_heads ? context_.model.shard.ranks : 1)));
  for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.gate, &layer.o}) {
    context_.reads(*linear);
  }
}

void AttentionBlock::run(size_t l, const LinearList& following, float* out) {
  const DecoderLayer& layer = context_.model.layers[l];
  const auto [kv, plan] = kv_.layer(l);
  Products& products = context_.products;
  const int64_t tokens = context_.tokens, all = context_.step->tokens();
  const AttnShape& a = layer.attention;
  const int64_t q = int64_t{a.heads} * a.head_dim, k = int64_t{a.kv_heads} * a.head_dim;
  const Shard shard = layer.split_heads ? context_.model.shard : Shard{};
  const int64_t own = int64_t{a.heads} * a.v_dim, hidden = context_.model.hidden;
  float *const qkv = qkv_.ensure(all * qkv_width_), *const all_heads = heads_.ensure(all * heads_width_);
  float* const heads = all_heads + shard.rank * own;
  stream_.norm_and_pack(layer.attn_norm, input_acts(layer));
  const Product projections[] = {{&layer.q, qkv, qkv_width_, 0, tokens},
                                 {&layer.k, qkv + q, qkv_width_, 0, tokens},
                                 {&layer.v, qkv + q + k, qkv_width_, 0, tokens}};
  plan->prefetch_keys(*kv);
  products.expect({&layer.o});
  products.multiply(projections, layer.v ? 3 : layer.k ? 2 : 1, context_.acts);
  if (layer.gate) {
    float* const gate = gate_.ensure(tokens * heads_width_);
    products.multiply({{&layer.gate, gate, heads_width_, 0, tokens}}, context_.acts);
  }
  write(layer, *kv);
  products.prefetch({&layer.o}, tokens);
  plan->run(*kv, qkv, qkv_width_, layer.sinks, heads, heads_width_);
  kv_.prefetch_after(l);
  if (layer.gate) {
    context_.for_each_token(tokens, [&](int64_t t, int) {
      float* const row = heads + t * heads_width_;
      context_.kernels.activate(Activation::Sigmoid, gate_.data() + t * heads_width_, row, q, row);
    });
  }
  pack_heads(layer, all_heads);
  products.prefetch(following, tokens);
  products.multiply({{&layer.o, out + shard.first(hidden), stream_.stride(), 0, tokens}}, context_.acts);
  if (layer.split_heads) context_.gather(out, stream_.stride(), tokens, hidden);
}

void AttentionBlock::pack_heads(const DecoderLayer& layer, float* heads) {
  if (!layer.split_heads) return context_.pack_rows(heads, heads_width_, layer.o);
  const Shard& shard = context_.model.shard;
  const int64_t own = int64_t{layer.attention.heads} * layer.attention.v_dim, all = own * shard.ranks;
  const ActType act = layer.o.weight->act;
  if (!context_.packs_parts(act, own) || own % kPanel != 0) {
    context_.group->gather(context_.pool, heads, heads_width_, context_.tokens, shard.equal(own));
    return context_.pack_rows(heads, heads_width_, layer.o);
  }
  const int64_t first = shard.rank * own;
  context_.for_each_token(context_.tokens, [&](int64_t t, int) {
    context_.kernels.pack_act_part(act, heads + t * heads_width_ + first, first, own, all,
                                   context_.acts.row(static_cast<int>(act), t));
  });
  context_.gather_packed(context_.acts, act, context_.tokens, shard.equal(own), all);
}

void AttentionBlock::write(const DecoderLayer& layer, const KvLayer& kv) {
  const AttnShape& a = layer.attention;
  if (!layer.k) {
    return context_.for_each_token(context_.tokens, [&](int64_t t, int) {
      norm_and_rope(layer, t, {0, a.kv_heads}, qkv_.data() + t * qkv_width_);
    });
  }
  const int64_t q_width = int64_t{a.heads} * a.head_dim, k_width = int64_t{a.kv_heads} * a.head_dim;
  const int64_t head_bytes =
      context_.kernels.kv_block_bytes(kv.type, kv.block_size, 1, kv.head_dim, kv.v_dim);
  // A token's keys touch as many cache lines as they have values, so for few tokens work is split by
  // head.
  const bool whole = layer.qk_norm.q && layer.qk_norm.scope == NormScope::Full;
  const int64_t shares = whole || context_.tokens > context_.pool.threads() ? 1 : a.kv_heads;
  kv_.for_each_write(layer, kv, shares, [&](const StepKv::Write& w) {
    const Heads heads{w.share * a.kv_heads / shares, (w.share + 1) * a.kv_heads / shares};
    float* const q = qkv_.data() + w.token * qkv_width_;
    norm_and_rope(layer, w.token, heads, q);
    KvLayer part = kv;
    part.base += heads.first * head_bytes;
    part.kv_heads = static_cast<int32_t>(heads.end - heads.first);
    const float* const k = q + q_width + heads.first * a.head_dim;
    context_.kernels.kv_write(part, w.block, w.position % kv.block_size, k, k + k_width);
  });
}

void AttentionBlock::norm_and_rope(const DecoderLayer& layer, int64_t token, const Heads& heads,
                              float* qkv) const {
  const KernelTable& kernels = context_.kernels;
  const int64_t position = context_.positions[static_cast<size_t>(token)];
  const AttnShape& a = layer.attention;
  const int64_t dim = a.head_dim, group = a.heads / a.kv_heads, count = heads.end - heads.first;
  const bool own = layer.kv_layer < 0;
  float *const q = qkv + heads.first * group * dim,
               *const k = own ? qkv + (a.heads + heads.first) * dim : nullptr;
  if (own) {
    float* const v = k + a.kv_heads * dim;
    if (!layer.v) std::copy_n(k, count * dim, v);
    for (int64_t h = 0; layer.qk_norm.v && h < count; ++h) {
      kernels.rms_norm(v + h * dim, layer.qk_norm.v.weight, context_.model.norm_eps, dim, v + h * dim);
    }
  }
  if (!layer.qk_norm.after_rope) norm_heads(layer, token, heads, q, k);
  if (layer.clip > 0) {
    kernels.clamp(q, layer.clip, count * group * dim);
    if (own) {
      kernels.clamp(k, layer.clip, count * dim);
      kernels.clamp(k + a.kv_heads * dim, layer.clip, count * dim);
    }
  }
  if (layer.rope >= 0) {
    const RopeTable& rope = context_.model.ropes[static_cast<size_t>(layer.rope)];
    const float* cos_sin = rope.at(position);
    kernels.rope(q, count * group, dim, rope.dim(), cos_sin);
    if (own) kernels.rope(k, count, dim, rope.dim(), cos_sin);
  }
  if (layer.qk_norm.after_rope) norm_heads(layer, token, heads, q, k);
  if (layer.temperature.floor > 0) {
    kernels.scale(q, layer.temperature.at(position), count * group * dim);
  }
}

void AttentionBlock::norm_heads(const DecoderLayer& layer, int64_t token, const Heads& heads, float* q,
                           float* k) const {
  const QkNorm& n = layer.qk_norm;
  if (!n.q) return;
  const KernelTable& kernels = context_.kernels;
  const AttnShape& a = layer.attention;
  const float eps = context_.model.norm_eps;
  const auto each = [&](const Norm& norm, int64_t first, int64_t count, float* x) {
    const bool full = n.scope == NormScope::Full;
    const int64_t width = full ? count * a.head_dim : a.head_dim;
    const int64_t step = n.scope == NormScope::Heads ? a.head_dim : 0;
    for (int64_t h = first; h < (full ? first + 1 : first + count); ++h, x += width) {
      const float* bias = norm.bias == nullptr ? nullptr : norm.bias + h * step;
      if (n.layer_norm) {
        kernels.layer_norm(x, norm.weight + h * step, bias, eps, width, x);
      } else {
        kernels.rms_norm(x, norm.weight + h * step, eps, width, x);
      }
    }
  };
  const int64_t group = a.heads / a.kv_heads, count = heads.end - heads.first;
  each(context_.norm_of(n.q, token), heads.first * group, count * group, q);
  if (k != nullptr) each(context_.norm_of(n.k, token), heads.first, count, k);
}

}  // namespace tidemill
