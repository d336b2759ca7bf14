#include "step/executor.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "kernels/peaks.h"
#include "runtime/error.h"
#include "step/check.h"

namespace tidemill {

namespace {

constexpr int64_t kMostAdapters = 1 << 16;

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

void Executor::join(int descriptor, int rank, int ranks) {
  if (runner_ || group_) throw internal_error("a group is joined once, before the model is built");
  group_ = std::make_unique<Group>(descriptor, rank, ranks);
}

void Executor::fail_group() {
  if (group_) group_->fail();
  if (stage_) stage_->fail();
}

void Executor::join_chain(int from, int to, int stage, int stages) {
  if (runner_ || group_ || stage_) throw internal_error("a chain is joined once, before the model is built");
  stage_ = std::make_unique<Stage>(from, to, stage, stages);
}

void Executor::build(const ModelConfig& config, EmbeddingSource embedding, EmbeddingSource inputs) {
  if (runner_) throw internal_error("the model is built already");
  if (config.ranks != (group_ ? group_->ranks() : 1)) throw internal_error("a shard without its group");
  if (config.stage != (stage_ ? stage_->index() : 0) || config.stages != (stage_ ? stage_->stages() : 1)) {
    throw internal_error("a stage without its chain");
  }
  model_ = build_model(weights_, config, embedding, inputs);
  const DecoderModel& m = model_;
  if (m.embedding.source != nullptr) weights_.count_mapped(embedding.bytes);
  if (m.inputs.embedding.source != nullptr) weights_.count_mapped(inputs.bytes);

  std::vector<CacheGroupShape> groups;
  for (const int64_t window : config.group_windows) groups.push_back({window, {}});
  std::vector<CacheLayerShape> shapes;
  for (size_t l = 0; l < m.layers.size(); ++l) {
    const DecoderLayer& layer = m.layers[l];
    if (layer.has_attention && layer.kv_layer < 0) {
      groups[static_cast<size_t>(layer.cache_group)].layers.push_back(static_cast<int>(l));
    }
    const AttnShape& a = layer.attention;
    shapes.push_back({a.kv_heads, a.head_dim, a.v_dim});
  }
  cache_.emplace(kernels_, static_cast<KvType>(config.kv_type), config.block_size,
                 std::move(groups), std::move(shapes), m.state_floats);
  runner_ = std::make_unique<StepRunner>(kernels_, pool_, model_, weights_.packed(),
                                         [this] { return closed_.load(); }, group_.get(), stage_.get());
  queue_ = std::make_unique<StepQueue>(runs());
}

template <class Body>
auto Executor::run_alone(int64_t rows, int64_t tokens, Body&& body) {
  std::lock_guard lock(running_);
  const ProfiledStep profiled(pool_.profile(), rows, tokens);
  try {
    return body();
  } catch (...) {
    fail_group();  // the other processes no longer compute the same
    throw;
  }
}

StepQueue::Run Executor::runs() {
  StepQueue::Run run;
  if (!stage_ || !stage_->first()) {
    run.finish = [this](Step& step) {
      return run_alone(step.input.rows(), step.input.tokens(), [&] {
        return runner_->finish(runner_->begin(step.input, *cache_), step.input, *cache_, step.masks);
      });
    };
    return run;
  }
  run.begin = [this](Step& step) {
    run_alone(step.input.rows(), step.input.tokens(),
              [&] { step.begun = runner_->begin(step.input, *cache_); });
  };
  run.finish = [this](Step& step) {
    return run_alone(0, 0, [&] { return runner_->finish(step.begun, step.input, *cache_, step.masks); });
  };
  run.ready = [this](int milliseconds) { return stage_->ready(milliseconds); };
  return run;
}

KvCache& Executor::cache() const {
  if (!cache_) throw internal_error("the model is not built yet");
  return const_cast<KvCache&>(*cache_);
}

void Executor::check_open() const {
  if (closed_) throw closed_error();
}

int64_t Executor::kv_bytes() const { return cache_ ? cache_->bytes() : 0; }

void Executor::allocate_cache(const std::vector<int64_t>& num_blocks, int64_t states) {
  with_idle_cache([&](KvCache& cache, ThreadPool&) {
    std::lock_guard lock(moving_);
    cache.allocate(num_blocks, states);
  });
}

void Executor::retype_cache(int type) {
  with_idle_cache([&](KvCache& cache, ThreadPool&) {
    std::lock_guard lock(moving_);
    cache.retype(static_cast<KvType>(type));
  });
}

std::shared_ptr<Step> Executor::submit(StepInput input) {
  check_open();
  const KvCache& kv = cache();
  if (kv.num_blocks(0) == 0 && !model_.layers.empty()) throw internal_error("no KV cache is allocated");
  if (!input.adapters.empty()) hold_adapters(input);
  const auto check = [&](const StepInput& step, const std::vector<uint8_t>* previous) {
    check_step(step, {model_.vocab, model_.max_positions,
                      static_cast<int64_t>(model_.layers.size()), model_.hidden,
                      model_.types == nullptr ? 0 : model_.types->n, model_.causal, kv, previous});
  };
  return queue_->submit(std::move(input), model_.vocab, check);
}

void Executor::load_adapter(int64_t slot, std::shared_ptr<const Adapter> adapter) {
  if (slot < 0 || slot >= kMostAdapters) throw internal_error("no such slot of adapters");
  std::lock_guard lock(loading_adapters_);
  const auto at = static_cast<size_t>(slot);
  if (adapters_.size() <= at) adapters_.resize(at + 1);
  adapters_[at].swap(adapter);
}

void Executor::hold_adapters(StepInput& step) {
  std::lock_guard lock(loading_adapters_);
  for (const int32_t slot : step.adapters) {
    const auto at = static_cast<size_t>(slot);
    if (slot >= 0 && (at >= adapters_.size() || !adapters_[at])) {
      throw internal_error("adapters: slot " + std::to_string(slot) + " is empty", "adapters");
    }
    step.held_adapters.push_back(slot < 0 ? nullptr : adapters_[at]);
  }
}

void Executor::copy_blocks(int64_t group, const int32_t* pairs, int64_t count) {
  std::lock_guard lock(running_);
  check_open();
  cache().check_blocks(group, pairs, 2 * count);
  cache().copy(group, pairs, count);
}

void Executor::give_back_blocks(int64_t group, const int32_t* blocks, int64_t count) {
  with_idle_cache([&](KvCache& cache, ThreadPool&) { cache.give_back(group, blocks, count); });
}

void Executor::limit_cache(int64_t blocks) {
  with_idle_cache([&](KvCache& cache, ThreadPool&) {
    for (int64_t g = 0; g < cache.groups(); ++g) cache.limit(g, blocks);
  });
}

void Executor::start_profile(size_t most_events) {
  std::lock_guard lock(running_);
  check_open();
  if (profile_) throw internal_error("a profile is being taken already");
  profile_ = std::make_unique<Profile>(most_events);
  pool_.count_in(profile_.get());
}

std::unique_ptr<Profile> Executor::end_profile() {
  std::lock_guard lock(running_);
  pool_.count_in(nullptr);
  return std::move(profile_);
}

double Executor::peak(ActType act) {
  constexpr int kRounds = 5;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> operations(static_cast<size_t>(pool_.threads()));
    const auto start = std::chrono::steady_clock::now();
    pool_.run(pool_.threads(), 1, [&](int64_t begin, int64_t, int) {
      const double from = thread_seconds(), rate = register_peak(kernels_.isa, act);
      operations[static_cast<size_t>(begin)] = rate * 1e9 * (thread_seconds() - from);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, std::accumulate(operations.begin(), operations.end(), 0.0) / took.count());
  }
  return best;
}

void Executor::close() {
  closed_ = true;
  weights_.close();
  fail_group();
  if (queue_) queue_->close();
  std::scoped_lock lock(running_, moving_);
  if (cache_) cache_->free();
  weights_.free();
}

}  // namespace tidemill
