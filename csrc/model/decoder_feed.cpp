// Feed-forward blocks: down(act(gate) * up), or down(act(up)) without a gate.
#include <algorithm>

#include "model/decoder.h"

namespace tidemill {

namespace {

// From this many rows on, the outputs of gate and up no longer fit in L2. Each thread then computes a
// few panels of both, at most kFusedBytes, and activates and packs them at once.
constexpr int64_t kMinFusedRows = 33;
constexpr int64_t kFusedBytes = int64_t{256} << 10, kMaxFusedPanels = 4;
static_assert(2 * kMaxFusedPanels * kPanel < kMaxCachedStride, "what is made together stays near");

int64_t fused_panels(int64_t rows) {
  const int64_t bytes = rows * 2 * kPanel * int64_t{sizeof(float)};
  return std::clamp<int64_t>(kFusedBytes / bytes, 1, kMaxFusedPanels);
}

}  // namespace

void Decoder::feed_forward(const DecoderLayer& layer, const Norm& norm, float* out) {
  if (!layer.experts) {
    add_norm_pack(norm, input_acts(layer.mlp));
    return dense(layer.mlp, tokens_, out);
  }
  const Experts& moe = *layer.experts;
  if (moe.apart()) return run_moe_own_norms(moe, norm, out);
  unsigned acts = act_bit(moe.router);
  for (const FeedForward& expert : moe.experts) acts |= input_acts(expert);
  if (moe.shared.up.weight != nullptr) acts |= input_acts(moe.shared);
  if (moe.shared_gate.weight != nullptr) acts |= act_bit(moe.shared_gate);
  add_norm_pack(norm, acts, moe.scale_inputs ? normed_.ensure(tokens_ * model_.hidden) : nullptr);
  run_moe(moe, out);
}

bool Decoder::fuses_gate_up(const FeedForward& mlp, int64_t rows) {
  return rows >= kMinFusedRows && mlp.gated() && mlp.gate.weight->n == mlp.up.weight->n;
}

void Decoder::prefetch_feed_forward(const DecoderLayer& layer) {
  if (!layer.has_feed_forward) return pool_.idle_prefetcher().clear();
  if (layer.experts) return prefetch_weights({&layer.experts->router});
  // When gate and up are fused, a thread starts with its panels of gate.
  fuses_gate_up(layer.mlp, tokens_) ? prefetch_weights({&layer.mlp.gate}) : prefetch_weights({&layer.mlp.gate, &layer.mlp.up});
}

void Decoder::dense(const FeedForward& mlp, int64_t rows, float* out) {
  down_acts_.ensure(static_cast<int>(mlp.down.weight->act), rows);
  fuses_gate_up(mlp, rows) ? compute_gate_up_fused(mlp, rows) : compute_gate_up(mlp, rows);
  prefetch_layer(layer_ + 1);
  const Product down{&mlp.down, out, delta_stride_, 0, rows};
  multiply(&down, 1, down_acts_);
}

void Decoder::compute_gate_up(const FeedForward& mlp, int64_t rows) {
  float* const up = mlp_.data() + mlp_width_ / 2;
  prefetch_weights({&mlp.down});
  if (mlp.gated()) {
    multiply({{&mlp.gate, mlp_.data(), mlp_width_, 0, rows}, {&mlp.up, up, mlp_width_, 0, rows}});
  } else {
    multiply({{&mlp.up, up, mlp_width_, 0, rows}});
  }
  for_each_token(rows, [&](int64_t t, int thread) { activate_row(mlp, t, thread, down_acts_); });
}

// Rows [m0, m0 + rows) times panels [p0, p0 + panels) of gate and up, activated. The result is packed
// for `down` if its format can pack part of a row, otherwise it stays in mlp_.
void Decoder::compute_fused_part(const FeedForward& mlp, int64_t m0, int64_t rows, int64_t p0,
                        int64_t panels, int thread, float* scratch) {
  const int64_t width = panels * kPanel, stride = row_stride(2 * width);  // up's panels follow gate's
  const int64_t n0 = p0 * kPanel, count = std::min(width, mlp.up.weight->n - n0);
  const Linear* const both[] = {&mlp.gate, &mlp.up};
  for (int64_t i = 0; i < 2; ++i) {
    PackedMatrix w = *both[i]->weight;
    w.n -= n0;
    w.data += p0 * w.panel_bytes;
    const int act = static_cast<int>(w.act);
    kernels_.gemm(w, acts_.row(act, m0), acts_.stride[act], rows, 0, panels,
                  both[i]->bias ? both[i]->bias + n0 : nullptr, scratch + i * width, stride,
                  pool_.threads() == 1, kv_prefetch(thread));
  }
  const ActType down = mlp.down.weight->act;
  const bool packs = packs_row_parts(down);
  for (int64_t r = 0; r < rows; ++r) {
    float* const gate = scratch + r * stride;
    float* const made = packs ? gate : mlp_.data() + (m0 + r) * mlp_width_ + n0;
    activate(mlp, gate, gate + width, count, made);
    if (packs) {
      kernels_.pack_act_part(down, made, n0, count, mlp.down.weight->k,
                             down_acts_.row(static_cast<int>(down), m0 + r));
    }
  }
}

bool Decoder::packs_row_parts(ActType act) const {
  const int64_t part = kernels_.act_part(act);
  return part > 0 && kPanel % part == 0;
}

void Decoder::compute_gate_up_fused(const FeedForward& mlp, int64_t rows) {
  const ProductPlan all = plan_product(*mlp.up.weight, rows, 0);
  const int64_t most = fused_panels(all.row_block);
  const int64_t scratch = all.row_block * row_stride(2 * most * kPanel);
  fused_.ensure(scratch * pool_.threads());
  prefetch_weights({&mlp.down});
  pool_.run_tapered(all.items, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end;) {
      const int64_t m0 = i / all.panels * all.row_block, p0 = i % all.panels;
      const int64_t panels = std::min({most, all.panels - p0, end - i});
      compute_fused_part(mlp, m0, std::min(all.row_block, rows - m0), p0, panels, thread,
                fused_.data() + thread * scratch);
      i += panels;
    }
  });
  if (packs_row_parts(mlp.down.weight->act)) return;
  for_each_token(rows, [&](int64_t t, int) {
    pack_row(act_bit(mlp.down), mlp_.data() + t * mlp_width_, mlp.down.weight->k, t, down_acts_);
  });
}

void Decoder::activate_row(const FeedForward& mlp, int64_t t, int thread, Acts& acts) {
  const int64_t width = mlp.up.weight->n;
  float* const gate = mlp_.data() + t * mlp_width_;
  const float* const up = gate + mlp_width_ / 2;
  float* out = scratch_.data() + thread * scratch_width_;
  activate(mlp, gate, up, width, out);
  pack_row(act_bit(mlp.down), out, width, t, acts);
}

void Decoder::activate(const FeedForward& mlp, float* gate, const float* up, int64_t count,
                       float* out) const {
  if (!mlp.gated()) return kernels_.activate(mlp.activation, up, nullptr, count, out);
  if (mlp.gate_scale != 1.0f) kernels_.scale(gate, mlp.gate_scale, count);
  kernels_.activate(mlp.activation, gate, up, count, out);
}

}  // namespace tidemill
