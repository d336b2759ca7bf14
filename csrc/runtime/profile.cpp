#include "runtime/profile.h"

#include <algorithm>

#include "runtime/ticks.h"

namespace tidemill {

namespace {

bool waits(Part part) { return part >= Part::AwaitWeights; }

}  // namespace

const char* name_of(Part part) {
  static constexpr const char* kNames[kParts] = {
      "other", "embedding", "attention", "window_attention", "latent_attention", "recurrent",
      "feed_forward", "experts", "layer_inputs", "head", "sampling", "await_weights", "await_masks",
      "await_stage"};
  return kNames[static_cast<size_t>(part)];
}

const char* name_of(Kernel kernel) {
  static constexpr const char* kNames[kKernels] = {"between_loops", "elementwise", "product",
                                                   "attention",     "scan",        "sampling"};
  return kNames[static_cast<size_t>(kernel)];
}

Profile::Profile(size_t most_events)
    : started_ns_(steady_ns()), started_(ticks()), most_events_(most_events) {
  events_.reserve(most_events);
}

double Profile::ns_per_tick() const {
  const int64_t passed = ticks() - started_;
  return passed > 0 ? static_cast<double>(steady_ns() - started_ns_) / static_cast<double>(passed) : 1;
}

void Profile::begin_step(int64_t of_rows, int64_t of_tokens) {
  driver_.store(std::this_thread::get_id());
  step_rows_ = of_rows;
  step_tokens_ = of_tokens;
  next_.clear();
  step_begun_ = mark_ = ticks();
  place_ = {Part::Other, -1, mark_};
}

void Profile::end_step() {
  const int64_t at = ticks();
  charge_between(at);
  driver_.store({});
  steps += step_rows_ > 0;  // the second part of a step that another process goes on with has none
  rows += step_rows_;
  tokens += step_tokens_;
  step_ticks += at - step_begun_;
  record({step_begun_, at - step_begun_, static_cast<int32_t>(step_rows_),
          static_cast<int32_t>(step_tokens_), 0, -1, What::Step, Part::Other, Kernel::Between, -1});
}

Profile::Place Profile::enter(Part part, int64_t layer) {
  if (waits(part)) charge_between(ticks());
  const Place before = place_;
  place_ = {part, layer, mark_};
  return before;
}

void Profile::leave(const Place& before) {
  if (waits(place_.part)) charge_between(ticks());
  if (mark_ > place_.since) {
    record({place_.since, mark_ - place_.since, 0, 0, 0, static_cast<int16_t>(place_.layer), What::Part,
            place_.part, Kernel::Between, -1});
  }
  place_ = before;
}

int64_t Profile::begin_loop() {
  const int64_t at = ticks();
  charge_between(at);
  if (next_.empty()) next_.emplace_back();
  return at;
}

void Profile::end_loop(int64_t begun, const Busy* threads, size_t count) {
  const int64_t at = ticks();
  int64_t busy_ticks = 0;
  const LoopWork& named = next_.front();
  for (size_t i = 0; i < count; ++i) {
    const Busy& busy = threads[i];
    if (busy.begin == 0) continue;
    const int64_t length = (busy.end > busy.begin ? busy.end : at) - busy.begin;
    busy_ticks += length;
    record({busy.begin, length, 0, 0, static_cast<int16_t>(i), static_cast<int16_t>(place_.layer),
            What::Loop, place_.part, named.kernel, named.weight});
  }
  split(at - begun, busy_ticks);
  next_.clear();
  mark_ = at;
}

// The loop's time among what it computed: by what it read where few rows are computed, else by operations.
void Profile::split(int64_t ticks, int64_t busy_ticks) {
  const auto weight_of = [](const LoopWork& work) {
    return static_cast<double>(work.few ? work.bytes : work.operations);
  };
  double total = 0;
  for (const LoopWork& work : next_) total += weight_of(work);
  int64_t left = ticks, busy_left = busy_ticks;
  for (size_t i = 0; i < next_.size(); ++i) {
    const bool last = i + 1 == next_.size();
    const double share = total > 0 ? weight_of(next_[i]) / total : 0;
    const int64_t own = last ? left : static_cast<int64_t>(static_cast<double>(ticks) * share);
    const int64_t own_busy =
        last ? busy_left : static_cast<int64_t>(static_cast<double>(busy_ticks) * share);
    Counter& of = counter(next_[i]);
    of.ticks += own;
    of.busy_ticks += own_busy;
    of.work.bytes += next_[i].bytes;
    of.work.operations += next_[i].operations;
    ++of.calls;
    left -= own;
    busy_left -= own_busy;
  }
}

void Profile::charge_between(int64_t until) {
  Counter& of = counter({Kernel::Between});
  of.ticks += until - mark_;
  of.busy_ticks += until - mark_;
  ++of.calls;
  mark_ = until;
}

Profile::Counter& Profile::counter(const LoopWork& work) {
  const auto found = std::find_if(counters_.begin(), counters_.end(), [&](const Counter& of) {
    return of.part == place_.part && of.work.kernel == work.kernel && of.work.weight == work.weight &&
           of.work.act == work.act && of.work.few == work.few;
  });
  if (found != counters_.end()) return *found;
  counters_.push_back({place_.part, {work.kernel, work.weight, work.act, work.few}});
  return counters_.back();
}

void Profile::record(const Event& event) {
  if (events_.size() < most_events_) {
    events_.push_back(event);
  } else {
    ++cut_events;
  }
}

}  // namespace tidemill
