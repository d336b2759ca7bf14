// What all blocks of a decoder share while a step runs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "memory/cache.h"
#include "memory/memory.h"
#include "model/acts.h"
#include "model/layers.h"
#include "model/products.h"
#include "runtime/group.h"
#include "runtime/step.h"
#include "runtime/threadpool.h"

namespace tidemill {

class StepContext {
 public:
  // `group`: of the processes that compute the model's shards; null: this one computes all of it.
  StepContext(const KernelTable& kernels, ThreadPool& pool, const DecoderModel& model, Group* group)
      : kernels(kernels), pool(pool), model(model), group(group), products(kernels, pool), width_(model.hidden) {}

  const KernelTable& kernels;
  ThreadPool& pool;
  const DecoderModel& model;
  Group* const group;
  Products products;
  Acts acts;  // of tokens; each block packs what its products read

  // The step, set by `begin`.
  const StepInput* step = nullptr;
  KvCache* cache = nullptr;
  int64_t tokens = 0;  // computed in the current layer: the first ones of the step
  std::vector<int64_t> positions, row_of;  // per token: its position, and its row in the step
  const RowAdapters* adapters = nullptr;   // of all tokens; null: none
  // The adapters of `count` rows, each of a token, for activations that are no tokens' in order; null
  // where the step has none.
  template <class TokenOf>
  const RowAdapters* adapters_of(RowAdapters& made, int64_t count, TokenOf&& token_of) const {
    if (adapters == nullptr) return nullptr;
    made.clear();
    for (int64_t i = 0; i < count; ++i) made.add(adapters->of(token_of(i)));
    return made.groups().empty() ? nullptr : &made;
  }

  // While the decoder is built: a product of `acts` with this linear will be issued.
  void reads(const Linear& linear) {
    if (!linear) return;
    types_ |= act_bit(linear);
    needs_width(linear.weight->k);
  }
  // While the decoder is built: rows of `values` values are packed, or held in scratch.
  void needs_width(int64_t values) { width_ = std::max(width_, values); }
  void needs_scratch(int64_t values) { scratch_width_ = std::max(scratch_width_, values); }
  // After all blocks are built.
  void finish();
  // Most values of a row that is packed.
  int64_t width() const { return width_; }

  // Before a step.
  void begin(const StepInput& input, KvCache& kv);

  // Room for a row per thread.
  float* scratch(int thread) const { return scratch_.data() + thread * scratch_width_; }
  void pack_row(unsigned types, const float* row, int64_t k, int64_t index, Acts& to) const {
    for_each_act(types | to.adapter_types_of(index), [&](int act) {
      kernels.pack_act(static_cast<ActType>(act), row, k, to.row(act, index));
    });
  }
  // Packs rows [tokens, k] at `rows`, `stride` floats apart, for `to`.
  void pack_rows(const float* rows, int64_t stride, const Linear& to) {
    for_each_token(tokens, [&](int64_t t, int) {
      pack_row(act_bit(to), rows + t * stride, to.weight->k, t, acts);
    });
  }
  // Rows [count, stride] of which this process computed its part of n outputs: afterwards it has all.
  void gather(float* rows, int64_t stride, int64_t count, int64_t n) {
    if (group != nullptr) group->gather(pool, rows, stride, count, model.shard.bounds(n));
  }
  // Whether parts of these rows of activations can be packed, parts that begin at multiples of `width`.
  bool packs_parts(ActType act, int64_t width) const {
    const int64_t part = kernels.act_part(act);
    return part > 0 && width % part == 0;
  }
  // Rows of packed activations of k values of which this process packed its part (bounds in values).
  void gather_packed(Acts& rows, ActType act, int64_t count, Bounds bounds, int64_t k);
  // A norm of the model's kind, over `hidden` values.
  void apply_norm(const Norm& norm, const float* x, float* out) const;
  // The norm as the token's adapter has it.
  Norm norm_of(const Norm& norm, int64_t token) const {
    if (adapters == nullptr) return norm;
    const Adapter* const adapter = adapters->of(token);
    if (adapter == nullptr || !adapter->replaces_vectors()) return norm;
    return {adapter->vector(norm.weight), adapter->vector(norm.bias)};
  }

  // Runs body(token, thread) for `count` tokens.
  template <class Body>
  void for_each_token(int64_t count, Body&& body) {
    // Waking another thread takes about as long as one token's share of an elementwise phase.
    pool.run_tapered(count, count <= 2 ? count : 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t t = begin; t < end; ++t) body(t, thread);
    });
  }

 private:
  RowAdapters token_adapters_;
  unsigned types_ = 0;  // of activations
  int64_t width_ = 0, scratch_width_ = 0;
  Buffer<float> scratch_;
};

}  // namespace tidemill
