// Submitted steps and the thread that runs them.
//
// At most two steps are outstanding (submitted, result not taken). They run in order. If a step fails,
// steps submitted while it was outstanding fail too, because they depend on its tokens.
// computed stands on its tokens.
#pragma once
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

namespace tidemill {

class Step {
 public:
  Step(StepInput step_input, int64_t vocab)
      : input(std::move(step_input)), masks(input, vocab) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits at most this many seconds; returns whether the step is done.
  bool wait(double seconds);
  // Waits, then returns the output (once) or throws the step's error.
  StepOutput take();
  // The result will not be requested any more.
  void release() { released_.store(true); }

  const StepInput input;
  MaskBoard masks;

 private:
  friend class StepQueue;
  void finish(StepOutput output, std::exception_ptr error);

  std::chrono::steady_clock::time_point submitted_ = std::chrono::steady_clock::now();
  std::shared_ptr<Step> previous_;  // outstanding when this one was submitted
  std::mutex mutex_;
  std::condition_variable finished_;
  StepOutput output_;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
  std::atomic<bool> released_{false};
};

class StepQueue {
 public:
  using Run = std::function<StepOutput(Step&)>;

  // `run` computes a step on the driver thread.
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
  void execute(Step& step);
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
