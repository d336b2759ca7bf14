// Multi-head latent attention: see Latent in layers.h.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "model/residual_stream.h"
#include "model/step_context.h"
#include "model/step_kv.h"

namespace tidemill {

class LatentAttentionBlock {
 public:
  LatentAttentionBlock(StepContext& context, ResidualStream& stream, StepKv& kv)
      : context_(context), stream_(stream), kv_(kv) {}

  // While the decoder is built: `run` will be called with this layer.
  void add(const DecoderLayer& layer);
  void finish() { head_acts_.set_width(context_.kernels, head_k_); }
  // Attention of norm(x) over the latents of layer l, into `out`.
  void run(size_t l, float* out);

 private:
  // Queries in queries_, latents and rotated keys in latents_.
  void project(const DecoderLayer& layer);
  // Norms the latents, rotates keys and queries, and writes the cache.
  void write(const DecoderLayer& layer, const KvLayer& kv);
  // Queries in the form attention reads, in absorbed_: per head [query in latent space, rotated part].
  void absorb_queries(const DecoderLayer& layer);
  // Projects the heads' outputs back, into queries_.
  void project_back(const DecoderLayer& layer);
  // A product per head: rows are packed in head_acts_ head by head, so that a matrix is read once.
  void multiply_heads(const std::vector<Linear>& linears, float* out, int64_t step, int64_t width);

  StepContext& context_;
  ResidualStream& stream_;
  StepKv& kv_;
  int64_t absorbed_width_ = 0, heads_width_ = 0, queries_width_ = 0, low_rank_width_ = 0;
  int64_t latents_width_ = 0, head_k_ = 0;
  Buffer<float> absorbed_, heads_, queries_, low_rank_, latents_;
  RowAdapters head_adapters_;
  Acts head_acts_;
  std::vector<Product> products_;
};

}  // namespace tidemill
