#include "step/queue.h"

#include <algorithm>

#include "runtime/error.h"

namespace tidemill {

namespace {
constexpr size_t kMaxOutstanding = 2;
}  // namespace

bool Step::wait(double seconds) {
  if (done() || seconds <= 0) return done();
  std::unique_lock lock(mutex_);
  return finished_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return done(); });
}

StepOutput Step::take() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done(); });
  if (released_.exchange(true) && !error_) {
    throw internal_error("the result of a step can be taken once");
  }
  if (error_) std::rethrow_exception(error_);
  return std::move(output_);
}

void Step::finish(StepOutput output, std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    output_ = std::move(output);
    error_ = error;
    previous_.reset();
    done_.store(true, std::memory_order_release);
  }
  finished_.notify_all();
}

StepQueue::StepQueue(Run run) : run_(std::move(run)), driver_([this] { drive(); }) {}

// Drops finished steps whose result was taken or whose handle is gone.
void StepQueue::prune() {
  std::erase_if(outstanding_, [](const std::shared_ptr<Step>& step) {
    return step->done() && step->released_.load();
  });
}

std::shared_ptr<Step> StepQueue::submit(
    StepInput input, int64_t vocab,
    const std::function<void(const StepInput&, const std::vector<uint8_t>*)>& check) {
  std::lock_guard lock(mutex_);
  if (closed()) throw closed_error();
  prune();
  if (outstanding_.size() >= kMaxOutstanding) {
    throw internal_error("two steps are outstanding already: take a result first");
  }
  check(input, any_submitted_ ? &last_samples_ : nullptr);
  auto step = std::make_shared<Step>(std::move(input), vocab);
  if (!outstanding_.empty()) step->previous_ = outstanding_.back();
  last_samples_ = step->input.sample;
  for (size_t r = 0; r < step->input.drafts.size(); ++r) {
    if (step->input.drafts[r] > 0) last_samples_[r] = 0;  // nobody knows yet which token is its last
  }
  any_submitted_ = true;
  outstanding_.push_back(step);
  queue_.push_back(step);
  work_.notify_one();
  return step;
}

bool StepQueue::idle() {
  std::lock_guard lock(mutex_);
  prune();
  return outstanding_.empty();
}

void StepQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_.store(true);
    for (auto& step : outstanding_) step->masks.cancel();
  }
  work_.notify_all();
  if (driver_.joinable()) driver_.join();
}

void StepQueue::drive() {
  std::deque<std::shared_ptr<Step>> begun;
  for (;;) {
    std::shared_ptr<Step> step = begun.empty() ? next(true) : next_concurrent(*begun.back());
    if (step != nullptr) {
      begin(*step);
      begun.push_back(std::move(step));
      continue;
    }
    if (begun.empty()) return;
    finish(*begun.front());
    begun.pop_front();
  }
}

std::shared_ptr<Step> StepQueue::next(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) work_.wait(lock, [&] { return closed() || !queue_.empty(); });
  if (queue_.empty()) return nullptr;
  std::shared_ptr<Step> step = std::move(queue_.front());
  queue_.pop_front();
  return step;
}

std::shared_ptr<Step> StepQueue::next_concurrent(const Step& begun) {
  // Short, because what is submitted meanwhile should begin at once.
  constexpr int kMilliseconds = 1;
  if (!run_.ready || begun.error_) return nullptr;
  while (!closed()) {
    const bool ready = run_.ready(0);
    {
      std::lock_guard lock(mutex_);
      if (!queue_.empty()) {
        if (queue_.front()->takes_tokens()) return nullptr;
        break;
      }
    }
    if (ready || run_.ready(kMilliseconds)) return nullptr;
  }
  return next(false);
}

void StepQueue::begin(Step& step) {
  if (step.previous_ != nullptr) step.error_ = step.previous_->error_;  // it ran on this thread
  if (step.error_) return;
  try {
    if (closed()) throw closed_error();
    const std::chrono::duration<double> queued = std::chrono::steady_clock::now() - step.submitted_;
    step.queued_ = queued.count();
    if (run_.begin) run_.begin(step);
  } catch (...) {
    step.error_ = std::current_exception();
  }
}

void StepQueue::finish(Step& step) {
  StepOutput output;
  std::exception_ptr error = step.error_;
  if (!error && step.previous_ != nullptr) error = step.previous_->error_;
  if (!error) {
    try {
      output = run_.finish(step);
      output.seconds[0] = step.queued_;
    } catch (...) {
      error = std::current_exception();
    }
  }
  step.finish(std::move(output), error);
}

}  // namespace tidemill
