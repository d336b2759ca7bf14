// Runs one step from token ids to sampled tokens.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "memory/cache.h"
#include "memory/memory.h"
#include "model/decoder.h"
#include "runtime/group.h"
#include "runtime/stage.h"
#include "runtime/step.h"
#include "runtime/threadpool.h"
#include "sample/sampler.h"
#include "step/mask_board.h"

namespace tidemill {

class StepRunner {
 public:
  // See Decoder. Of a group, the leader samples.
  StepRunner(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model, Latch& packed,
             std::function<bool()> cancelled, Group* group = nullptr, Stage* stage = nullptr);

  // A step whose layers were computed, in this process, and whose results are not.
  struct Begun {
    std::vector<int32_t> token_ids{};  // real ones
    std::vector<int32_t> inherited{};  // per row: failure code of the row whose token it takes, or 0
    std::chrono::steady_clock::time_point start{};
    double packing_wait_seconds = 0;  // of all steps before
  };
  // Computes the step's layers.
  Begun begin(const StepInput& step, KvCache& cache);
  // Computes its results and remembers the tokens its rows sampled for the next one; after an exception it
  // remembers none. Of stages, the first may have begun another step, which takes no token of this one.
  StepOutput finish(const Begun& begun, const StepInput& step, KvCache& cache, MaskBoard& masks);

 private:
  // What sampling a row needs in addition to SamplingInput. Its positions are sampled in order, as long as
  // each token is the draft that the next position stands on.
  struct Pending {
    int64_t row;            // of the step
    int64_t first;          // its first position in SamplingInput
    int64_t positions;
    int32_t future_token;   // resolved FUTURE input, or -1
    int32_t inherited;      // failure code of the previous step's row, or 0
    int64_t next = 0;       // position to sample; `positions`: done
  };

  bool leads() const { return group_ == nullptr || group_->leads(); }
  void resolve(const StepInput& step, Begun& begun) const;
  void plan_sampling(const Begun& begun, const StepInput& step);
  void compute_hidden(const StepInput& step, StepOutput& out);
  void compute_others(const StepInput& step, StepOutput& out);
  void sample_all(const StepInput& step, MaskBoard& masks, StepOutput& out);
  int64_t await_mask(MaskBoard& masks, int64_t seen) const;
  void sample_ready(const StepInput& step, MaskBoard& masks, StepOutput& out);
  void sample_row(const StepInput& step, MaskBoard& masks, StepOutput& out, Pending& p, int thread);
  int32_t sample_position(const StepInput& step, StepOutput& out, const Pending& p, const uint8_t* mask,
                          int thread);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  DecoderModel& model_;
  Group* const group_;
  Stage* const stage_;
  Decoder decoder_;
  std::vector<int32_t> previous_;  // per row of the last step: its token, or INT32_MIN for none
  std::vector<Pending> pending_;    // per sampling row
  std::vector<size_t> ready_;       // of pending_: rows whose next mask has arrived
  std::vector<std::unique_ptr<Sampler>> samplers_;  // per thread
  Buffer<float> chunk_logits_, sample_logits_, copies_;
};

}  // namespace tidemill
