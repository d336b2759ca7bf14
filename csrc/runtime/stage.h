// A process (stage) of the chain that computes a model's layers one part after the other.
//
// Stage 0 has the embedding, the first layers and the output; the last one sends it the states that the
// output needs. States pass through stream sockets in the order of the steps, which is the same in all
// stages. They are sent as computed (float32), so results do not depend on how many stages there are.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace tidemill {

class Stage {
 public:
  // `from` and `to`: connected stream sockets, of which this keeps duplicates; other ends with the stage
  // before (of stage 0: the last) and the one behind (of the last: stage 0). Error (Resource).
  Stage(int from, int to, int index, int stages);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  bool first() const { return index_ == 0; }
  bool last() const { return index_ + 1 == stages_; }
  int index() const { return index_; }
  int stages() const { return stages_; }

  // Sends rows [count, width] of a step, found by row(i).
  void send(int64_t step, int64_t count, int64_t width, const std::function<const float*(int64_t)>& row);
  // Receives the rows of a step, of which there must be `count`. Waits as long as it takes: who watches the
  // stages decides when one is lost.
  void receive(int64_t step, int64_t count, int64_t width, const std::function<float*(int64_t)>& row);
  // Whether `receive` has something to read, or would end with an error; waits at most so long.
  bool ready(int milliseconds) const;

  // Exchanges that wait, and all later ones, of every stage end with Error (Unavailable). On any thread.
  void fail();

 private:
  void write(const void* data, size_t bytes);
  void read(void* data, size_t bytes);
  [[noreturn]] void throw_failed();

  int from_ = -1, to_ = -1;
  const int index_, stages_;
  std::atomic<bool> failed_{false};
  std::vector<float> rows_;  // gathered to be sent at once
};

}  // namespace tidemill
