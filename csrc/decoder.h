// The decoder: any DecoderSpec's layers over a ragged batch of tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "attend.h"
#include "cache.h"
#include "kernels.h"
#include "memory.h"
#include "rope.h"
#include "step.h"
#include "threadpool.h"

namespace tidemill {

struct Linear {
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // padded to whole panels, or null
};

struct DecoderLayer {
  AttnShape attention{};
  int rope = -1;  // index of its table, -1 for none
  int cache_group = 0;
  Linear q, k, v, o, gate, up, down;
  const float *attn_norm = nullptr, *mlp_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // null without qk_norm
};

// Where embedding rows come from: a packed matrix (tied, or requantized), or the file's bytes.
struct Embedding {
  const PackedMatrix* packed = nullptr;
  WeightType type = WeightType::F32;
  const uint8_t* source = nullptr;
  int64_t row_bytes = 0;
};

struct DecoderModel {
  int64_t vocab = 0, hidden = 0, max_positions = 0;
  float norm_eps = 0;
  std::vector<DecoderLayer> layers;
  std::vector<RopeTable> ropes;
  Embedding embedding;
  const float* final_norm = nullptr;
  Linear lm_head;
};

// Runs the layers. One step at a time; keeps its buffers from step to step.
class Decoder {
 public:
  // `cancelled` is asked between phases; when it says true the step ends with Error (Unavailable).
  Decoder(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model,
          std::function<bool()> cancelled);

  // Computes all tokens of the step (token_ids are real ids), writing K and V into `cache`.
  void forward(const StepInput& step, const std::vector<int32_t>& token_ids, KvCache& cache);
  // Logits of `count` tokens (indices into the last forward's tokens): out [count, vocab].
  void logits(const int64_t* tokens, int64_t count, float* out);

 private:
  // A product of packed activations with one matrix into out [rows, ldo].
  struct Product {
    const Linear* linear;
    float* out;
    int64_t ldo;
  };
  // Tokens of one row that fall into one cache block.
  struct WriteItem {
    int64_t token, count;
    int64_t row, position;
  };

  void size_buffers(int64_t tokens);
  void prepare(const StepInput& step, const KvCache& cache);
  void prepare_tables(const StepInput& step, const KvCache& cache);
  void embed(const std::vector<int32_t>& token_ids);
  void project_qkv(const DecoderLayer& layer, const KvLayer& kv);
  void write_kv(const DecoderLayer& layer, const KvLayer& kv);
  // x += delta (when given), norm, and pack for the consumers of the result.
  void add_norm_pack(const float* delta, const float* norm, std::initializer_list<const Linear*> to);
  // Packs rows [tokens, n] at `rows`, `stride` floats apart, for `to`.
  void pack_rows(const float* rows, int64_t stride, const Linear& to);
  void multiply(std::initializer_list<Product> products, int64_t rows);
  void pack_row(unsigned acts, const float* row, int64_t k, int64_t index);
  // Runs body(token, thread) for every token.
  template <class Body>
  void each_token(int64_t count, Body&& body);
  void check_cancelled() const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  DecoderModel& model_;
  std::function<bool()> cancelled_;
  std::vector<std::unique_ptr<Attend>> attends_;  // one per geometry and group
  struct Plan {
    AttnShape shape;
    int cache_group;
  };
  std::vector<Plan> plans_;
  std::vector<int> layer_plan_;

  int64_t tokens_ = 0;
  int64_t qkv_width_ = 0, heads_width_ = 0, mlp_width_ = 0, scratch_width_ = 0;
  int64_t act_k_ = 0;  // widest input of any matrix
  std::vector<int64_t> positions_;
  std::vector<std::vector<int32_t>> tables_;       // per group: padded block tables
  std::vector<int64_t> table_stride_;
  std::vector<std::vector<AttendRow>> attend_rows_;  // per group
  std::vector<WriteItem> writes_;
  Buffer<float> x_, qkv_, heads_, delta_, mlp_, scratch_;
  Buffer<uint8_t> acts_[3];
  int64_t act_stride_[3] = {0, 0, 0};
};

}  // namespace tidemill
