// Where the time of steps goes, counted while somebody wants to know (Executor::start_profile).
//
// The thread that runs a step is always in one part of it and either in a loop of the thread pool or
// between two, so what is counted sums to the time of the step. Whatever is not told about a loop
// (`next`) is told by the part alone. Without a profile a loop and a scope cost one comparison each.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace tidemill {

// Parts of a step. Other: whatever is in none of them.
enum class Part : uint8_t {
  Other, Embedding, Attention, WindowAttention, LatentAttention, Recurrent, FeedForward, Experts,
  LayerInputs, Head, Sampling, AwaitWeights, AwaitMasks, AwaitStage
};
constexpr int kParts = 14;
const char* name_of(Part part);

// What a loop computes. Between: no loop, one thread works (or waits, in a part that says so).
// Elementwise: norms, RoPE, activations, conversions: a few operations per value.
enum class Kernel : uint8_t { Between, Elementwise, Product, Attention, Scan, Sampling };
constexpr int kKernels = 6;
const char* name_of(Kernel kernel);

// What the next loop computes, or a part of it.
struct LoopWork {
  Kernel kernel = Kernel::Elementwise;
  int8_t weight = -1, act = -1;       // of a product: WeightType and ActType
  bool few = false;                   // few rows: bound by reading weights
  int64_t bytes = 0, operations = 0;  // weights, K, V and states moved; a multiply-add counts two
};

class Profile {
 public:
  // Loops with at most so many rows are counted apart from those with more.
  static constexpr int64_t kFewRows = 16;

  // Times are in ticks; see `ns_per_tick`.
  struct Counter {
    Part part;
    LoopWork work;
    int64_t calls = 0;
    int64_t ticks = 0;       // of the step's thread
    int64_t busy_ticks = 0;  // of all threads together
  };
  enum class What : int8_t { Step, Part, Loop };
  // A record of the trace, in the order of their ends.
  struct Event {
    int64_t begin, ticks;
    int32_t rows, tokens;  // of a step
    int16_t thread;        // of a loop
    int16_t layer;         // of a part; -1: none
    What what;
    Part part;
    Kernel kernel;
    int8_t weight;
  };

  // Keeps the first `most_events` records of a trace.
  explicit Profile(size_t most_events);

  // Called by the thread that runs steps.
  void begin_step(int64_t rows, int64_t tokens);
  void end_step();
  struct Place {
    Part part;
    int64_t layer;
    int64_t since;  // from when on time is its own
  };
  // Time between the last loop of a part and the first of the next one is the next one's, so that no clock
  // is read here, but for parts that wait.
  Place enter(Part part, int64_t layer);
  void leave(const Place& before);
  // What the next loop computes; several calls: parts of one loop.
  void next(const LoopWork& work) { next_.push_back(work); }

  // Called by the thread pool, of loops of that thread.
  bool counts_this_thread() const { return driver_.load() == std::this_thread::get_id(); }
  int64_t begin_loop();
  // What a thread did, from its first piece of the loop until it found no other. begin 0: nothing; an end
  // before the begin: it is still looking.
  struct Busy {
    int64_t begin, end;
  };
  void end_loop(int64_t begun, const Busy* threads, size_t count);

  // Results, while no step runs.
  const std::vector<Counter>& counters() const { return counters_; }
  const std::vector<Event>& events() const { return events_; }
  int64_t steps = 0, rows = 0, tokens = 0, step_ticks = 0, cut_events = 0;
  int64_t started() const { return started_; }
  // By comparison with the system's clock since the start.
  double ns_per_tick() const;

 private:
  Counter& counter(const LoopWork& work);
  void charge_between(int64_t until);
  void split(int64_t ticks, int64_t busy_ticks);
  void record(const Event& event);

  const int64_t started_ns_, started_;
  const size_t most_events_;
  std::atomic<std::thread::id> driver_{};  // runs a step now
  int64_t step_begun_ = 0, step_rows_ = 0, step_tokens_ = 0;
  Place place_{Part::Other, -1, 0};
  int64_t mark_ = 0;  // until when time is counted
  std::vector<LoopWork> next_;
  std::vector<Counter> counters_;
  std::vector<Event> events_;
};

// The part of a step that a block of code is. Without a profile: nothing.
class ProfiledPart {
 public:
  ProfiledPart(Profile* profile, Part part, int64_t layer = -1) : profile_(profile) {
    if (profile_ != nullptr) before_ = profile_->enter(part, layer);
  }
  ~ProfiledPart() {
    if (profile_ != nullptr) profile_->leave(before_);
  }
  ProfiledPart(const ProfiledPart&) = delete;
  ProfiledPart& operator=(const ProfiledPart&) = delete;

 private:
  Profile* const profile_;
  Profile::Place before_{};
};

class ProfiledStep {
 public:
  ProfiledStep(Profile* profile, int64_t rows, int64_t tokens) : profile_(profile) {
    if (profile_ != nullptr) profile_->begin_step(rows, tokens);
  }
  ~ProfiledStep() {
    if (profile_ != nullptr) profile_->end_step();
  }
  ProfiledStep(const ProfiledStep&) = delete;
  ProfiledStep& operator=(const ProfiledStep&) = delete;

 private:
  Profile* const profile_;
};

}  // namespace tidemill
