// Feed-forward blocks: down(act(gate) * up), or down(act(up)) without a gate.
#pragma once
#include <cstdint>

#include "memory/memory.h"
#include "model/residual_stream.h"
#include "model/step_context.h"

namespace tidemill {

// Set of activation types that the block's first products read.
inline unsigned input_acts(const FeedForward& mlp) {
  return act_bit(mlp.up) | (mlp.gated() ? act_bit(mlp.gate) : 0u);
}

class FeedForwardBlock {
 public:
  FeedForwardBlock(StepContext& context, ResidualStream& stream)
      : context_(context), stream_(stream) {}

  // While the decoder is built: this block will be computed.
  void add(const FeedForward& mlp);
  void finish() { down_acts_.set_width(context_.kernels, context_.width()); }

  // The products that `run` starts with, for `rows` rows.
  static LinearList first_products(const FeedForward& mlp, int64_t rows);
  // The block of the rows that are packed in the context's acts, into `out`. The last product
  // prefetches `following`.
  void run(const FeedForward& mlp, const LinearList& following, float* out);

  // For mixtures of experts, whose rows are of several blocks: room for the outputs of gate and up of
  // `count` rows and the rows packed for `down`.
  // `adapters`: of those rows.
  void ensure(unsigned down_types, int64_t count, const RowAdapters* adapters);
  // Products of rows [first, first + rows) of some acts, into the same rows here.
  Product gate_product(const FeedForward& mlp, int64_t first, int64_t rows) const;
  Product up_product(const FeedForward& mlp, int64_t first, int64_t rows) const;
  // act(gate) * up of row t, packed for `down` as row t of `down_acts`; by a shard, its part of it, which
  // `gather_rows` completes.
  void activate_row(const FeedForward& mlp, int64_t t, int thread);
  // After the rows of all blocks (mlp_of(row), of equal widths) are activated. `types`: that `down` reads.
  template <class MlpOf>
  void gather_rows(unsigned types, int64_t count, MlpOf&& mlp_of) {
    if (count == 0 || context_.group == nullptr) return;
    const int64_t all = mlp_of(0).down.weight->k;
    if (!gather_packed(types, count, all)) return;
    context_.gather(made_.data(), made_width_, count, all);
    context_.for_each_token(count, [&](int64_t t, int) {
      const Linear& down = mlp_of(t).down;
      if (!packs_row_parts(down.weight->act)) context_.pack_row(act_bit(down), made_row(t), all, t, down_acts_);
    });
  }
  const Acts& down_acts() const { return down_acts_; }

 private:
  // Both compute the input of `down`: one product after the other, or gate and up fused by panels.
  void compute_gate_up(const FeedForward& mlp);
  void compute_gate_up_fused(const FeedForward& mlp);
  void compute_fused_block(const FeedForward& mlp, const Products::Block& block, int thread,
                           float* scratch);
  // Whether part of a row can be packed.
  bool packs_row_parts(ActType act) const { return context_.packs_parts(act, kPanel); }
  // act(gate) * up, or act(up) without a gate. `gate` is scaled in place.
  void activate(const FeedForward& mlp, float* gate, const float* up, int64_t count,
                float* out) const;
  float* row(int64_t t) const { return rows_.data() + t * width_; }
  // Gathers rows of the types of which parts are packed; whether there are others.
  bool gather_packed(unsigned types, int64_t count, int64_t k);
  // Row t of all outputs of the activation, of which a shard computes a part: where only whole rows are packed.
  float* made_row(int64_t t) const { return made_.data() + t * made_width_; }

  StepContext& context_;
  ResidualStream& stream_;
  int64_t width_ = 0, made_width_ = 0;
  Buffer<float> made_;  // of a shard: [rows, made_width_]
  Buffer<float> rows_;  // [rows, width_]: the output of gate, that of up at half the width
  Buffer<float> fused_;
  Acts down_acts_;  // the input of `down`
};

}  // namespace tidemill
