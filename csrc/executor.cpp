#include "executor.h"

#include <cmath>

#include "error.h"
#include "step_check.h"

namespace tidemill {

namespace {

const KernelTable& kernels_named(const std::string& isa) {
  const KernelTable* table = select_kernels(isa.empty() ? nullptr : isa.c_str());
  if (table == nullptr) {
    std::string names;
    for (const char* const* name = available_isas(); *name != nullptr; ++name) {
      names += std::string(names.empty() ? "" : ", ") + *name;
    }
    throw Error(ErrorKind::Config, "this machine cannot run the instruction set '" + isa +
                                       "': choose one of " + names, "isa");
  }
  return *table;
}

}  // namespace

Executor::Executor(int threads, const std::string& isa, bool float32_compute)
    : kernels_(kernels_named(isa)), pool_(threads), weights_(kernels_, pool_, float32_compute) {}

Linear Executor::linear(int matrix, int bias, int64_t n, int64_t k) const {
  const PackedMatrix& weight = weights_.matrix(matrix);
  if (weight.n != n || weight.k != k) {
    throw internal_error("a matrix is [" + std::to_string(weight.n) + ", " +
                         std::to_string(weight.k) + "] where [" + std::to_string(n) + ", " +
                         std::to_string(k) + "] is needed");
  }
  return {&weight, bias < 0 ? nullptr : weights_.vector(bias, n)};
}

DecoderLayer Executor::layer(const LayerConfig& c, const ModelConfig& model) const {
  if (c.heads < 1 || c.kv_heads < 1 || c.heads % c.kv_heads != 0 || c.head_dim < 2 ||
      c.head_dim % 2 != 0) {
    throw Error(ErrorKind::Unsupported,
                "the native backend needs heads that are a multiple of kv_heads, and an even "
                "head_dim; got " + std::to_string(c.heads) + ", " + std::to_string(c.kv_heads) +
                    ", " + std::to_string(c.head_dim), "head_dim");
  }
  if (c.rope >= static_cast<int>(model.ropes.size()) || c.cache_group < 0 ||
      c.cache_group >= static_cast<int>(model.group_windows.size())) {
    throw internal_error("a layer names a rope table or cache group that does not exist");
  }
  const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
  const int64_t width = weights_.matrix(c.gate).n;
  DecoderLayer layer;
  layer.attention = {c.heads, c.kv_heads, c.head_dim, c.scale, c.window};
  layer.rope = c.rope;
  layer.cache_group = c.cache_group;
  layer.q = linear(c.q, c.q_bias, q, model.hidden);
  layer.k = linear(c.k, c.k_bias, kv, model.hidden);
  layer.v = linear(c.v, c.v_bias, kv, model.hidden);
  layer.o = linear(c.o, c.o_bias, model.hidden, q);
  layer.gate = linear(c.gate, c.gate_bias, width, model.hidden);
  layer.up = linear(c.up, c.up_bias, width, model.hidden);
  layer.down = linear(c.down, c.down_bias, model.hidden, width);
  layer.attn_norm = weights_.vector(c.attn_norm, model.hidden);
  layer.mlp_norm = weights_.vector(c.mlp_norm, model.hidden);
  if (c.q_norm >= 0) layer.q_norm = weights_.vector(c.q_norm, c.head_dim);
  if (c.k_norm >= 0) layer.k_norm = weights_.vector(c.k_norm, c.head_dim);
  return layer;
}

void Executor::build(const ModelConfig& config, const uint8_t* embedding_source,
                     int64_t source_bytes) {
  if (runner_) throw internal_error("the model is built already");
  DecoderModel& m = model_;
  m.vocab = config.vocab;
  m.hidden = config.hidden;
  m.max_positions = config.max_positions;
  m.norm_eps = config.norm_eps;
  for (const LayerConfig& c : config.layers) m.layers.push_back(layer(c, config));
  for (const auto& frequencies : config.ropes) m.ropes.emplace_back(frequencies);
  if (config.embedding >= 0) {
    m.embedding.packed = linear(config.embedding, -1, m.vocab, m.hidden).weight;
  } else {
    const auto type = static_cast<WeightType>(config.embedding_type);
    const int64_t row = source_row_bytes(type, m.hidden);
    if (embedding_source == nullptr || source_bytes != row * m.vocab) {
      throw Error(ErrorKind::ModelFile, "the embedding's bytes contradict its shape",
                  "embed.weight");
    }
    m.embedding = {nullptr, type, embedding_source, row};
    weights_.count_mapped(source_bytes);
  }
  m.final_norm = weights_.vector(config.final_norm, m.hidden);
  m.lm_head = linear(config.lm_head, -1, m.vocab, m.hidden);

  std::vector<CacheGroupShape> groups;
  for (const int64_t window : config.group_windows) groups.push_back({window, {}});
  std::vector<CacheLayerShape> shapes;
  for (size_t l = 0; l < m.layers.size(); ++l) {
    groups[static_cast<size_t>(m.layers[l].cache_group)].layers.push_back(static_cast<int>(l));
    shapes.push_back({m.layers[l].attention.kv_heads, m.layers[l].attention.head_dim});
  }
  cache_.emplace(kernels_, static_cast<KvType>(config.kv_type), config.block_size,
                 std::move(groups), std::move(shapes));
  runner_ = std::make_unique<StepRunner>(kernels_, pool_, model_, [this] { return closed_.load(); });
  queue_ = std::make_unique<StepQueue>([this](Step& step) {
    std::lock_guard lock(running_);
    return runner_->run(step.input, *cache_, step.masks);
  });
}

KvCache& Executor::cache() const {
  if (!cache_) throw internal_error("the model is not built yet");
  return const_cast<KvCache&>(*cache_);
}

void Executor::check_open() const {
  if (closed_) throw Error(ErrorKind::Unavailable, "the native backend is closed");
}

int64_t Executor::kv_bytes() const { return cache_ ? cache_->bytes() : 0; }

void Executor::allocate_cache(const std::vector<int64_t>& num_blocks) {
  with_idle_cache([&](KvCache& cache, ThreadPool&) { cache.allocate(num_blocks); });
}

void Executor::retype_cache(int type) {
  with_idle_cache([&](KvCache& cache, ThreadPool&) { cache.retype(static_cast<KvType>(type)); });
}

std::shared_ptr<Step> Executor::submit(StepInput input) {
  check_open();
  const KvCache& kv = cache();
  if (kv.bytes() == 0) throw internal_error("no KV cache is allocated");
  const auto check = [&](const StepInput& step, const std::vector<uint8_t>* previous) {
    check_step(step, {model_.vocab, model_.max_positions, kv, previous});
  };
  return queue_->submit(std::move(input), model_.vocab, check);
}

void Executor::copy_blocks(int64_t group, const int32_t* pairs, int64_t count) {
  std::lock_guard lock(running_);
  check_open();
  cache().check_blocks(group, pairs, 2 * count);
  cache().copy(group, pairs, count);
}

void Executor::close() {
  closed_ = true;
  if (queue_) queue_->close();
  std::lock_guard lock(running_);
  if (cache_) cache_->free();
  weights_.free();
}

}  // namespace tidemill
