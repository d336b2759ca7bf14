// Recurrent states: what the recurrent layers remember of a sequence, all layers of a state together.
//
// A step reads one state and writes another, so that a step that fails has changed nothing. Each
// state knows how many tokens it covers; -1: it holds nothing.
#pragma once
#include <cstdint>
#include <vector>

#include "memory.h"
#include "step.h"

namespace tidemill {

class StatePool {
 public:
  // Floats of one state; 0: the model has no recurrent layers.
  explicit StatePool(int64_t floats = 0) : floats_(floats) {}

  int64_t state_bytes() const { return stride() * static_cast<int64_t>(sizeof(float)); }
  int64_t count() const { return static_cast<int64_t>(covers_.size()); }
  int64_t bytes() const { return count() * state_bytes(); }
  bool needed() const { return floats_ > 0; }
  // Replaces the states by `count` empty ones. Error (Resource).
  void allocate(int64_t count);
  void free();

  const float* at(int32_t id, int64_t offset) const { return data(id) + offset; }
  float* at(int32_t id, int64_t offset) { return const_cast<float*>(data(id)) + offset; }

  // Error (Internal) unless each row reads a state (-1: the empty beginning), and all that is
  // written, snapshots included, is read by none and written once.
  void check(const StepInput& step) const;
  // Before the layers run: what rows read covers exactly what stands before them, else Error
  // (Internal); what they write holds nothing until `commit`.
  void begin(const StepInput& step);
  void commit(const StepInput& step);

  // Tokens first .. first + count of a row, from one state to the next. A row's last run may be
  // empty: what it writes is then what it reads.
  struct Run {
    int64_t first, count;
    int32_t from, to;
  };
  // Per row the runs between its snapshots, in order.
  static std::vector<std::vector<Run>> runs(const StepInput& step);

 private:
  void check_snapshots(const StepInput& step, std::vector<bool>& taken) const;
  int64_t stride() const { return round_up(floats_, 16); }
  const float* data(int32_t id) const {
    return reinterpret_cast<const float*>(region_.data()) + id * stride();
  }

  int64_t floats_;
  Region region_;
  std::vector<int64_t> covers_;
};

}  // namespace tidemill
