// Attention over the paged cache: projections, norms and RoPE of Q and K, the gate, the output.
#pragma once
#include <cstdint>

#include "memory/memory.h"
#include "model/residual_stream.h"
#include "model/step_context.h"
#include "model/step_kv.h"

namespace tidemill {

class AttentionBlock {
 public:
  AttentionBlock(StepContext& context, ResidualStream& stream, StepKv& kv)
      : context_(context), stream_(stream), kv_(kv) {}

  // While the decoder is built: `run` will be called with this layer.
  void add(const DecoderLayer& layer);
  // Attention of norm(x) over the K and V of layer l, into `out`. The last product prefetches
  // `following`.
  void run(size_t l, const LinearList& following, float* out);

 private:
  struct Heads {
    int64_t first, end;  // KV heads
  };
  // The heads' outputs, rows of heads_width_, packed for the output projection.
  void pack_heads(const DecoderLayer& layer, float* heads);
  // Applies norms and RoPE to Q and K and writes K and V to the cache, unless another layer owns them.
  void write(const DecoderLayer& layer, const KvLayer& kv);
  // For a range of a token's KV heads and the query heads that read them, between the products and the
  // cache.
  void norm_and_rope(const DecoderLayer& layer, int64_t token, const Heads& heads,
                     float* qkv) const;
  void norm_heads(const DecoderLayer& layer, int64_t token, const Heads& heads, float* q, float* k) const;

  StepContext& context_;
  ResidualStream& stream_;
  StepKv& kv_;
  int64_t qkv_width_ = 0, heads_width_ = 0;
  Buffer<float> qkv_, heads_, gate_;
};

}  // namespace tidemill
