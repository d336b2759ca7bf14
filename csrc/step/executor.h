// The native side of one loaded model: threads, weights, cache, and steps in flight.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory/cache.h"
#include "model/adapters.h"
#include "model/build_model.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "runtime/group.h"
#include "runtime/profile.h"
#include "runtime/stage.h"
#include "runtime/step.h"
#include "runtime/threadpool.h"
#include "step/queue.h"
#include "step/run.h"

namespace tidemill {

class Executor {
 public:
  // isa: empty selects the best. Error (Config) if it cannot run here.
  Executor(int threads, const std::string& isa, bool float32_compute);
  ~Executor() { close(); }

  const char* isa() const { return kernels_.isa; }
  WeightStore& weights() { return weights_; }
  // Before `build`: this process is a rank of a group (runtime/group.h) that shares the descriptor's memory.
  void join(int descriptor, int rank, int ranks);
  // Before `build`: this process is a stage of a chain (runtime/stage.h) that such sockets connect.
  void join_chain(int from, int to, int stage, int stages);
  // Exchanges of the group's ranks, or of the chain's stages, end; their steps fail.
  void fail_group();
  // Builds the model after its matrices are placed. Steps wait until the matrices they need are packed.
  // `embedding_source` (rows of embedding_type) must stay valid while the executor lives.
  void build(const ModelConfig& config, EmbeddingSource embedding, EmbeddingSource inputs);

  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t kv_bytes() const;
  int64_t block_bytes(int64_t group) const { return cache().block_bytes(group); }
  int64_t state_bytes() const { return cache().states().state_bytes(); }
  void allocate_cache(const std::vector<int64_t>& num_blocks, int64_t states);
  // Frees the cache; the next one has this type (KvType).
  void retype_cache(int type);

  std::shared_ptr<Step> submit(StepInput input);
  // An empty adapter of this model, to be filled and then loaded.
  std::shared_ptr<Adapter> new_adapter() const {
    return std::make_shared<Adapter>(kernels_, weights_.float32_compute());
  }
  // Steps submitted from now on find the adapter in the slot (null: nothing). Those in flight keep what
  // they were submitted with.
  void load_adapter(int64_t slot, std::shared_ptr<const Adapter> adapter);
  void copy_blocks(int64_t group, const int32_t* pairs, int64_t count);
  // See KvCache. Error (Internal) if a step is outstanding.
  void give_back_blocks(int64_t group, const int32_t* blocks, int64_t count);
  void limit_cache(int64_t blocks);  // of every group
  // Runs body(cache, pool) while no step is outstanding; Error (Internal) if one is.
  template <class Body>
  void with_idle_cache(Body&& body) {
    if (queue_ && !queue_->idle()) {
      throw internal_error("the cache is changed from outside while no step is outstanding");
    }
    std::lock_guard lock(running_);
    check_open();
    body(cache(), pool_);
  }
  // Counts where the time of the steps that begin from now on goes, with the first `most_events` records
  // of a trace. Waits for the step that runs, as the end does. Error (Internal) if one is counted already.
  void start_profile(size_t most_events);
  // Null if there is none.
  std::unique_ptr<Profile> end_profile();
  // Operations per second (a multiply-add counts two) that its threads reach together with products of such
  // activations, all operands in registers; takes some milliseconds, of which each loop stops steps for
  // one. 0: not known.
  double peak(ActType act);
  // Runs body(cache) while steps run, which must touch nothing that it does; the cache is neither replaced
  // nor freed meanwhile. On any thread, one at a time.
  template <class Body>
  void with_live_cache(Body&& body) {
    std::lock_guard lock(moving_);
    check_open();
    body(cache());
  }
  uint64_t progress() const { return pool_.progress(); }
  int threads() const { return pool_.threads(); }
  // Aborts packing and the running step, fails the queued ones, and frees weights and cache.
  // Idempotent.
  void close();

 private:
  KvCache& cache() const;
  void check_open() const;
  void hold_adapters(StepInput& step);
  StepQueue::Run runs();
  // Runs body while nothing else accesses the cache.
  template <class Body>
  auto run_alone(int64_t rows, int64_t tokens, Body&& body);

  const KernelTable& kernels_;
  ThreadPool pool_;
  WeightStore weights_;
  DecoderModel model_;
  std::optional<KvCache> cache_;
  std::mutex loading_adapters_;
  std::vector<std::shared_ptr<const Adapter>> adapters_;  // by slot
  std::unique_ptr<Group> group_;  // null: this process computes all of the model
  std::unique_ptr<Stage> stage_;  // null: this process computes all layers
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Profile> profile_;
  std::mutex running_;  // held while a step runs or the cache is accessed from outside
  std::mutex moving_;  // held while blocks are moved; taken after running_
  std::unique_ptr<StepQueue> queue_;
  std::atomic<bool> closed_{false};
};

}  // namespace tidemill
