#include "model/feed_forward.h"

#include <algorithm>

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

bool fuses_gate_up(const FeedForward& mlp, int64_t rows) {
  return rows >= kMinFusedRows && mlp.gated() && mlp.gate.weight->n == mlp.up.weight->n;
}

}  // namespace

void FeedForwardBlock::add(const FeedForward& mlp) {
  width_ = std::max(width_, 2 * row_stride(mlp.up.weight->n));
  for (const Linear* linear : {&mlp.gate, &mlp.up}) context_.reads(*linear);
  context_.needs_width(mlp.down.weight->k);
  made_width_ = std::max(made_width_, row_stride(mlp.down.weight->k));
}

LinearList FeedForwardBlock::first_products(const FeedForward& mlp, int64_t rows) {
  // When gate and up are fused, a thread starts with its panels of gate.
  if (fuses_gate_up(mlp, rows)) return {&mlp.gate};
  return {&mlp.gate, &mlp.up};
}

void FeedForwardBlock::ensure(unsigned down_types, int64_t count, const RowAdapters* adapters) {
  down_acts_.adapters = adapters;
  rows_.ensure(count * width_);
  if (context_.group != nullptr) made_.ensure(count * made_width_);
  down_acts_.ensure(down_types, count);
}

Product FeedForwardBlock::gate_product(const FeedForward& mlp, int64_t first, int64_t rows) const {
  return {&mlp.gate, row(first), width_, first, rows};
}

Product FeedForwardBlock::up_product(const FeedForward& mlp, int64_t first, int64_t rows) const {
  return {&mlp.up, row(first) + width_ / 2, width_, first, rows};
}

void FeedForwardBlock::run(const FeedForward& mlp, const LinearList& following, float* out) {
  const int64_t rows = context_.tokens;
  ensure(act_bit(mlp.down), rows, context_.acts.adapters);
  context_.products.prefetch({&mlp.down}, rows);
  fuses_gate_up(mlp, rows) ? compute_gate_up_fused(mlp) : compute_gate_up(mlp);
  context_.products.prefetch(following, rows);
  const int64_t hidden = context_.model.hidden, first = context_.model.shard.first(hidden);
  context_.products.multiply({{&mlp.down, out + first, stream_.stride(), 0, rows}}, down_acts_);
  context_.gather(out, stream_.stride(), rows, hidden);
}

void FeedForwardBlock::compute_gate_up(const FeedForward& mlp) {
  const int64_t rows = context_.tokens;
  const Product up = up_product(mlp, 0, rows);
  if (mlp.gated()) {
    context_.products.multiply({gate_product(mlp, 0, rows), up}, context_.acts);
  } else {
    context_.products.multiply({up}, context_.acts);
  }
  context_.for_each_token(rows, [&](int64_t t, int thread) { activate_row(mlp, t, thread); });
  gather_rows(act_bit(mlp.down), rows, [&](int64_t) -> const FeedForward& { return mlp; });
}

void FeedForwardBlock::compute_gate_up_fused(const FeedForward& mlp) {
  const int64_t rows = context_.tokens;
  const Products::Plan plan = context_.products.plan(*mlp.up.weight, rows);
  const int64_t most = fused_panels(plan.row_block);
  const int64_t scratch = plan.row_block * row_stride(2 * most * kPanel);
  fused_.ensure(scratch * context_.pool.threads());
  context_.products.prepare({&mlp.gate, &mlp.up}, rows, context_.acts);
  context_.products.for_each_block(plan, rows, most, [&](const Products::Block& block, int thread) {
    compute_fused_block(mlp, block, thread, fused_.data() + thread * scratch);
  });
  if (context_.group != nullptr) {
    return gather_rows(act_bit(mlp.down), rows, [&](int64_t) -> const FeedForward& { return mlp; });
  }
  if (packs_row_parts(mlp.down.weight->act)) return;
  context_.for_each_token(rows, [&](int64_t t, int) {
    context_.pack_row(act_bit(mlp.down), row(t), mlp.down.weight->k, t, down_acts_);
  });
}

// A block of gate and up, activated. The result is packed for `down` if its format can pack part of a
// row, otherwise it stays in rows_.
void FeedForwardBlock::compute_fused_block(const FeedForward& mlp, const Products::Block& block,
                                           int thread, float* scratch) {
  const int64_t width = block.count * kPanel, stride = row_stride(2 * width);  // up's follow gate's
  const int64_t n0 = block.first * kPanel, count = std::min(width, mlp.up.weight->n - n0);
  context_.products.compute(mlp.gate, context_.acts, block, scratch, stride, thread);
  context_.products.compute(mlp.up, context_.acts, block, scratch + width, stride, thread);
  const ActType down = mlp.down.weight->act;
  const bool shared = context_.group != nullptr, packs = packs_row_parts(down);
  const int64_t first = context_.model.shard.first(mlp.down.weight->k) + n0;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* const gate = scratch + r * stride;
    const int64_t t = block.row + r;
    float* const made = packs ? gate : shared ? made_row(t) + first : row(t) + n0;
    activate(mlp, gate, gate + width, count, made);
    if (packs) {
      const unsigned types = act_bit(mlp.down) | down_acts_.adapter_types_of(block.row + r);
      for_each_act(types, [&](int act) {
        context_.kernels.pack_act_part(static_cast<ActType>(act), made, first, count, mlp.down.weight->k,
                                       down_acts_.row(act, block.row + r));
      });
    }
  }
}

bool FeedForwardBlock::gather_packed(unsigned types, int64_t count, int64_t k) {
  bool others = false;
  for_each_act(types, [&](int type) {
    const auto act = static_cast<ActType>(type);
    if (!packs_row_parts(act)) {
      others = true;
    } else {
      context_.gather_packed(down_acts_, act, count, context_.model.shard.bounds(k), k);
    }
  });
  return others;
}

void FeedForwardBlock::activate_row(const FeedForward& mlp, int64_t t, int thread) {
  const int64_t width = mlp.up.weight->n;
  const ActType act = mlp.down.weight->act;
  const bool shared = context_.group != nullptr, packs = !shared || packs_row_parts(act);
  const int64_t all = mlp.down.weight->k, first = context_.model.shard.first(all);
  float* const out = packs ? context_.scratch(thread) : made_row(t) + first;
  activate(mlp, row(t), row(t) + width_ / 2, width, out);
  if (!shared) return context_.pack_row(act_bit(mlp.down), out, width, t, down_acts_);
  if (!packs) return;  // when the row is complete
  context_.kernels.pack_act_part(act, out, first, width, all, down_acts_.row(static_cast<int>(act), t));
}

void FeedForwardBlock::activate(const FeedForward& mlp, float* gate, const float* up, int64_t count,
                                float* out) const {
  const KernelTable& kernels = context_.kernels;
  if (!mlp.gated()) return kernels.activate(mlp.activation, up, nullptr, count, out);
  if (mlp.gate_scale != 1.0f) kernels.scale(gate, mlp.gate_scale, count);
  kernels.activate(mlp.activation, gate, up, count, out);
}

}  // namespace tidemill
