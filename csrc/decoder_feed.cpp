// down(act(gate) * up), or down(act(up)) without a gate: the feed-forward blocks' products and what lies
// between them.
#include <algorithm>

#include "decoder.h"

namespace tidemill {

namespace {

// From so many rows on what gate and up make is more than stays in the second-level cache, and each
// thread makes it of a few panels of both at a time, so many bytes, and goes on with these.
constexpr int64_t kJoinedRows = 33;
constexpr int64_t kJoinedBytes = int64_t{256} << 10, kJoinedPanels = 4;
static_assert(2 * kJoinedPanels * kPanel < kNearStride, "what is made together stays near");

int64_t joined_panels(int64_t rows) {
  const int64_t bytes = rows * 2 * kPanel * int64_t{sizeof(float)};
  return std::clamp<int64_t>(kJoinedBytes / bytes, 1, kJoinedPanels);
}

}  // namespace

void Decoder::feed_forward(const DecoderLayer& layer, const Norm& norm, float* out) {
  if (!layer.experts) {
    add_norm_pack(norm, input_acts(layer.mlp));
    return dense(layer.mlp, tokens_, out);
  }
  const Experts& moe = *layer.experts;
  if (moe.apart()) return mix_apart(moe, norm, out);
  unsigned acts = act_bit(moe.router);
  for (const FeedForward& expert : moe.experts) acts |= input_acts(expert);
  if (moe.shared.up.weight != nullptr) acts |= input_acts(moe.shared);
  if (moe.shared_gate.weight != nullptr) acts |= act_bit(moe.shared_gate);
  add_norm_pack(norm, acts, moe.scale_inputs ? normed_.ensure(tokens_ * model_.hidden) : nullptr);
  mix_experts(moe, out);
}

bool Decoder::joins(const FeedForward& mlp, int64_t rows) {
  return rows >= kJoinedRows && mlp.gated() && mlp.gate.weight->n == mlp.up.weight->n;
}

void Decoder::expect_feed(const DecoderLayer& layer) {
  if (!layer.feeds) return pool_.ahead().clear();
  if (layer.experts) return expect({&layer.experts->router});
  // Joined, a thread begins with its part of both.
  joins(layer.mlp, tokens_) ? expect({&layer.mlp.gate}) : expect({&layer.mlp.gate, &layer.mlp.up});
}

void Decoder::dense(const FeedForward& mlp, int64_t rows, float* out) {
  middle_acts_.ensure(static_cast<int>(mlp.down.weight->act), rows);
  joins(mlp, rows) ? make_joined(mlp, rows) : make_apart(mlp, rows);
  expect_layer(layer_ + 1);
  const Product down{&mlp.down, out, delta_stride_, 0, rows};
  multiply(&down, 1, middle_acts_);
}

void Decoder::make_apart(const FeedForward& mlp, int64_t rows) {
  float* const up = mlp_.data() + mlp_width_ / 2;
  expect({&mlp.down});
  if (mlp.gated()) {
    multiply({{&mlp.gate, mlp_.data(), mlp_width_, 0, rows}, {&mlp.up, up, mlp_width_, 0, rows}});
  } else {
    multiply({{&mlp.up, up, mlp_width_, 0, rows}});
  }
  each_token(rows, [&](int64_t t, int thread) { activate_row(mlp, t, thread, middle_acts_); });
}

// Rows [m0, m0 + rows) times panels [p0, p0 + panels) of gate and up, activated; packed for `down` as
// far as its type packs parts of a row, else left in mlp_.
void Decoder::make_part(const FeedForward& mlp, int64_t m0, int64_t rows, int64_t p0,
                        int64_t panels, int thread, float* scratch) {
  const int64_t width = panels * kPanel, stride = row_stride(2 * width);  // up's lie beside gate's
  const int64_t n0 = p0 * kPanel, count = std::min(width, mlp.up.weight->n - n0);
  const Linear* const both[] = {&mlp.gate, &mlp.up};
  for (int64_t i = 0; i < 2; ++i) {
    PackedMatrix w = *both[i]->weight;
    w.n -= n0;
    w.data += p0 * w.panel_bytes;
    const int act = static_cast<int>(w.act);
    kernels_.gemm(w, acts_.row(act, m0), acts_.stride[act], rows, 0, panels,
                  both[i]->bias ? both[i]->bias + n0 : nullptr, scratch + i * width, stride,
                  pool_.threads() == 1, beside(thread));
  }
  const ActType down = mlp.down.weight->act;
  const bool packs = parts(down);
  for (int64_t r = 0; r < rows; ++r) {
    float* const gate = scratch + r * stride;
    float* const made = packs ? gate : mlp_.data() + (m0 + r) * mlp_width_ + n0;
    activate(mlp, gate, gate + width, count, made);
    if (packs) {
      kernels_.pack_act_part(down, made, n0, count, mlp.down.weight->k,
                             middle_acts_.row(static_cast<int>(down), m0 + r));
    }
  }
}

bool Decoder::parts(ActType act) const {
  const int64_t part = kernels_.act_part(act);
  return part > 0 && kPanel % part == 0;
}

void Decoder::make_joined(const FeedForward& mlp, int64_t rows) {
  const Cut all = cut(*mlp.up.weight, rows, 0);
  const int64_t most = joined_panels(all.row_block);
  const int64_t scratch = all.row_block * row_stride(2 * most * kPanel);
  joined_.ensure(scratch * pool_.threads());
  expect({&mlp.down});
  pool_.run_tapered(all.items, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end;) {
      const int64_t m0 = i / all.panels * all.row_block, p0 = i % all.panels;
      const int64_t panels = std::min({most, all.panels - p0, end - i});
      make_part(mlp, m0, std::min(all.row_block, rows - m0), p0, panels, thread,
                joined_.data() + thread * scratch);
      i += panels;
    }
  });
  if (parts(mlp.down.weight->act)) return;
  each_token(rows, [&](int64_t t, int) {
    pack_row(act_bit(mlp.down), mlp_.data() + t * mlp_width_, mlp.down.weight->k, t, middle_acts_);
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
