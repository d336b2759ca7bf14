// Latent attention: see Latent in decoder.h.
#include <algorithm>
#include <cstring>

#include "model/decoder.h"

namespace tidemill {

void Decoder::size_latent_buffers(const DecoderLayer& layer) {
  const Latent& l = *layer.latent;
  const int64_t heads = layer.attention.heads;
  latent_queries_width_ = std::max(latent_queries_width_, row_stride(heads * std::max(l.query(), l.value)));
  latent_width_ = std::max(latent_width_, row_stride(l.rank + l.rope));
  head_k_ = std::max({head_k_, l.nope, l.rank});
  used_acts_ |= act_bit(l.kv_down) | act_bit(layer.q);
  if (l.q_down.weight == nullptr) return;
  low_rank_width_ = std::max(low_rank_width_, row_stride(l.q_down.weight->n));
  act_k_ = std::max(act_k_, l.q_down.weight->n);
  used_acts_ |= act_bit(l.q_down);
}

void Decoder::attend_latent(const DecoderLayer& layer, const KvLayer& kv, Attend& plan) {
  const Latent& l = *layer.latent;
  const int64_t heads = layer.attention.heads;
  float *const wide = latent_queries_.ensure(tokens_ * latent_queries_width_),
        *const latents = latents_.ensure(tokens_ * latent_width_);
  const Product kv_down{&l.kv_down, latents, latent_width_, 0, tokens_};
  const Product q{&layer.q, wide, latent_queries_width_, 0, tokens_};
  const bool direct = l.q_down.weight == nullptr;
  add_norm_pack(layer.attn_norm, act_bit(l.kv_down) | act_bit(direct ? layer.q : l.q_down));
  if (direct) {
    multiply({kv_down, q});
  } else {
    const int64_t rank = l.q_down.weight->n;
    float* const low = low_rank_.ensure(tokens_ * low_rank_width_);
    multiply({kv_down, {&l.q_down, low, low_rank_width_, 0, tokens_}});
    for_each_token(tokens_, [&](int64_t t, int) {
      float* row = low + t * low_rank_width_;
      kernels_.rms_norm(row, l.q_norm.weight, l.norm_eps, rank, row);
      pack_row(act_bit(layer.q), row, rank, t, acts_);
    });
    multiply({q});
  }
  write_latents(layer, kv);
  absorb_queries(layer);
  plan.run(kv, qkv_.data(), qkv_width_, layer.sinks, heads_.data(), heads_width_);

  // All rows of a head together, so that its matrix is read once.
  for_each_token(tokens_, [&](int64_t t, int) {
    for (int64_t h = 0; h < heads; ++h) {
      pack_row(act_bit(l.v_up[static_cast<size_t>(h)]),
               heads_.data() + t * heads_width_ + h * l.rank, l.rank, h * tokens_ + t, head_acts_);
    }
  });
  products_.clear();
  for (int64_t h = 0; h < heads; ++h) {
    products_.push_back({&l.v_up[static_cast<size_t>(h)], wide + h * l.value, latent_queries_width_,
                         h * tokens_, tokens_});
  }
  multiply(products_.data(), products_.size(), head_acts_);
  pack_rows(wide, latent_queries_width_, layer.o);
  multiply({{&layer.o, delta_.data(), delta_stride_, 0, tokens_}});
}

// Norms the latents, rotates keys and queries, and writes the cache.
void Decoder::write_latents(const DecoderLayer& layer, const KvLayer& kv) {
  const Latent& l = *layer.latent;
  const int64_t heads = layer.attention.heads;
  for_each_write(layer, kv, 1, [&](const Write& w) {
    float* latent = latents_.data() + w.token * latent_width_;
    kernels_.rms_norm(latent, l.kv_norm.weight, l.norm_eps, l.rank, latent);
    if (layer.rope >= 0) {
      const RopeTable& rope = model_.ropes[static_cast<size_t>(layer.rope)];
      const float* cos_sin = rope.at(w.position);
      kernels_.rope(latent + l.rank, 1, l.rope, rope.dim(), cos_sin);
      kernels_.rope(latent_queries_.data() + w.token * latent_queries_width_ + l.nope, heads, l.query(), rope.dim(),
                    cos_sin);
    }
    kernels_.kv_write(kv, w.block, w.position % kv.block_size, latent, latent);
  });
}

// Computes queries in the form attention reads, in qkv_: per head [query in latent space, rotated
// part].
void Decoder::absorb_queries(const DecoderLayer& layer) {
  const Latent& l = *layer.latent;
  const AttnShape& a = layer.attention;
  unsigned acts = 0;
  for (int64_t h = 0; h < a.heads; ++h) {
    acts |= act_bit(l.k_up[static_cast<size_t>(h)]) | act_bit(l.v_up[static_cast<size_t>(h)]);
  }
  for (int act = 0; act < kActTypes; ++act) {
    if (acts >> act & 1u) head_acts_.ensure(act, tokens_ * a.heads);
  }
  for_each_token(tokens_, [&](int64_t t, int) {
    const float* query = latent_queries_.data() + t * latent_queries_width_;
    float* out = qkv_.data() + t * qkv_width_;
    for (int64_t h = 0; h < a.heads; ++h, query += l.query(), out += a.head_dim) {
      pack_row(act_bit(l.k_up[static_cast<size_t>(h)]), query, l.nope, h * tokens_ + t, head_acts_);
      std::memcpy(out + l.rank, query + l.nope, static_cast<size_t>(l.rope) * sizeof(float));
    }
  });
  products_.clear();
  for (int64_t h = 0; h < a.heads; ++h) {
    products_.push_back({&l.k_up[static_cast<size_t>(h)], qkv_.data() + h * a.head_dim, qkv_width_,
                         h * tokens_, tokens_});
  }
  multiply(products_.data(), products_.size(), head_acts_);
}

}  // namespace tidemill
