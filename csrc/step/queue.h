// Submitted steps and the thread that runs them.
//
// At most two steps are outstanding (submitted, result not taken). They run in order. If a step fails,
// steps submitted while it was outstanding fail too, because they may depend on its tokens.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/step.h"
#include "step/mask_board.h"
#include "step/run.h"

namespace tidemill {

class Step {
 public:
  Step(StepInput step_input, int64_t vocab)
      : input(std::move(step_input)), masks(input, vocab) {}

  // Whether it takes a token that the step before samples.
  bool takes_tokens() const {
    return std::any_of(input.token_ids.begin(), input.token_ids.end(), [](int32_t id) { return id < 0; });
  }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits at most this many seconds; returns whether the step is done.
  bool wait(double seconds);
  // Waits, then returns the output (once) or throws the step's error.
  StepOutput take();
  // The result will not be requested any more.
  void release() { released_.store(true); }

  const StepInput input;
  StepRunner::Begun begun;  // by StepQueue::Run::begin
  MaskBoard masks;

 private:
  friend class StepQueue;
  void finish(StepOutput output, std::exception_ptr error);

  std::chrono::steady_clock::time_point submitted_ = std::chrono::steady_clock::now();
  std::shared_ptr<Step> previous_;  // outstanding when this one was submitted
  double queued_ = 0;
  std::mutex mutex_;
  std::condition_variable finished_;
  StepOutput output_;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
  std::atomic<bool> released_{false};
};

class StepQueue {
 public:
  // What computes steps, on the driver thread. A step is begun, and then finished before those after it.
  struct Run {
    std::function<void(Step&)> begin;  // null: nothing to do before `finish`
    std::function<StepOutput(Step&)> finish;
    // Waits at most so many milliseconds until `finish` of the step begun first need not wait for another
    // process. Null: no other is waited for, so that no step begins before the one in front of it is finished.
    std::function<bool(int)> ready;
  };

  explicit StepQueue(Run run);
  ~StepQueue() { close(); }

  // Validates the step with check(the previous step's rows that sample one token, or null) and queues it.
  // Error (Internal) if two are outstanding, Error (Unavailable) after close.
  std::shared_ptr<Step> submit(StepInput input, int64_t vocab,
                               const std::function<void(const StepInput&,
                                                        const std::vector<uint8_t>*)>& check);
  // True if no step is outstanding.
  bool idle();
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  // Aborts the running step, fails the queued ones and joins the driver. Idempotent.
  void close();

 private:
  void drive();
  std::shared_ptr<Step> next(bool wait);
  // The step to begin while the one begun last waits for another process; null: there is none.
  std::shared_ptr<Step> next_concurrent(const Step& begun);
  void begin(Step& step);
  void finish(Step& step);
  void prune();

  Run run_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Step>> queue_;
  std::vector<std::shared_ptr<Step>> outstanding_;
  std::vector<uint8_t> last_samples_;
  bool any_submitted_ = false;
  std::atomic<bool> closed_{false};
  std::thread driver_;
};

}  // namespace tidemill
