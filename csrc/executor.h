// Everything native about one loaded model: threads, weights, cache, and the steps in flight.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache.h"
#include "decoder.h"
#include "kernels.h"
#include "step.h"
#include "step_queue.h"
#include "step_run.h"
#include "threadpool.h"
#include "weights.h"

namespace tidemill {

// A layer as the bindings describe it: sizes, and ids of what WeightStore holds (-1 for none).
struct LayerConfig {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  int64_t window = 0;
  int rope = -1;
  int cache_group = 0;
  int q = -1, k = -1, v = -1, o = -1, gate = -1, up = -1, down = -1;
  int q_bias = -1, k_bias = -1, v_bias = -1, o_bias = -1;
  int gate_bias = -1, up_bias = -1, down_bias = -1;
  int attn_norm = -1, mlp_norm = -1, q_norm = -1, k_norm = -1;
};

struct ModelConfig {
  int64_t vocab = 0, hidden = 0, max_positions = 0;
  float norm_eps = 0;
  std::vector<LayerConfig> layers;
  std::vector<std::vector<float>> ropes;   // inverse frequencies
  std::vector<int64_t> group_windows;      // per cache group, 0 for full attention
  int kv_type = 0, block_size = 0;
  int embedding = -1;                      // a matrix, or -1: the source below
  int embedding_type = 0;
  int final_norm = -1, lm_head = -1;
};

class Executor {
 public:
  // isa: empty for the best there is. Error (Config) for one that cannot run here.
  Executor(int threads, const std::string& isa, bool float32_compute);
  ~Executor() { close(); }

  const char* isa() const { return kernels_.isa; }
  WeightStore& weights() { return weights_; }
  // Describes the model once its weights are in. `embedding_source` (rows of embedding_type) must
  // stay valid while the executor lives.
  void build(const ModelConfig& config, const uint8_t* embedding_source, int64_t source_bytes);

  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t kv_bytes() const;
  int64_t block_bytes(int64_t group) const { return cache().block_bytes(group); }
  void allocate_cache(const std::vector<int64_t>& num_blocks);
  // Frees the cache; the next one is of this type (KvType).
  void retype_cache(int type);

  std::shared_ptr<Step> submit(StepInput input);
  void copy_blocks(int64_t group, const int32_t* pairs, int64_t count);
  // Runs body(cache, pool) while no step is outstanding; Error (Internal) when one is.
  template <class Body>
  void with_idle_cache(Body&& body) {
    if (queue_ && !queue_->idle()) {
      throw internal_error("the cache is changed from outside while no step is outstanding");
    }
    std::lock_guard lock(running_);
    check_open();
    body(cache(), pool_);
  }
  uint64_t progress() const { return pool_.progress(); }
  int threads() const { return pool_.threads(); }
  // Ends the running step, fails the queued ones, and frees weights and cache. Idempotent.
  void close();

 private:
  KvCache& cache() const;
  void check_open() const;
  Linear linear(int matrix, int bias, int64_t n, int64_t k) const;
  DecoderLayer layer(const LayerConfig& config, const ModelConfig& model) const;

  const KernelTable& kernels_;
  ThreadPool pool_;
  WeightStore weights_;
  DecoderModel model_;
  std::optional<KvCache> cache_;
  std::unique_ptr<StepRunner> runner_;
  std::mutex running_;  // held while a step runs and while the cache is touched from outside
  std::unique_ptr<StepQueue> queue_;
  std::atomic<bool> closed_{false};
};

}  // namespace tidemill
