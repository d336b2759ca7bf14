// Recurrent states: one state holds what all recurrent layers remember of a sequence.
//
// A step reads one state and writes another, so a failed step changes nothing. Each state knows how
// many tokens it covers; -1: empty.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "runtime/step.h"

namespace tidemill {

class StatePool {
 public:
  // Floats per state; 0: the model has no recurrent layers.
  explicit StatePool(int64_t floats = 0) : floats_(floats) {}

  int64_t state_bytes() const { return stride() * static_cast<int64_t>(sizeof(float)); }
  int64_t count() const { return static_cast<int64_t>(covers_.size()); }
  int64_t bytes() const { return count() * state_bytes(); }
  bool needed() const { return floats_ > 0; }
  // Whether a step reads and writes states: not one that skips all layers.
  bool advance(const StepInput& step) const { return needed() && step.skip.empty(); }
  // Replaces the states with `count` empty ones. Error (Resource).
  void allocate(int64_t count);
  void free();

  const float* at(int32_t id, int64_t offset) const { return data(id) + offset; }
  float* at(int32_t id, int64_t offset) { return const_cast<float*>(data(id)) + offset; }

  // Bytes at .. at + size of a state as they lie in memory, which mean the same to the same build and
  // instruction set. A state that is written in parts covers `tokens` with its last one; -1: it is not
  // complete yet. Steps may run that do not touch it. Error (Internal) beyond its end.
  void read(int64_t id, int64_t at, int64_t size, uint8_t* out) const;
  void write(int64_t id, int64_t at, int64_t size, const uint8_t* bytes, int64_t tokens);

  // Error (Internal) unless each row reads a state (-1: the empty initial state), and every state that
  // is written, snapshots included, is written once and read by no row.
  void check(const StepInput& step) const;
  // Called before the layers run. The states that rows read must cover exactly the preceding tokens,
  // else Error (Internal); the states they write are invalid until `commit`.
  void begin(const StepInput& step);
  void commit(const StepInput& step);

  // Tokens first .. first + count of a row, from one state to the next. A run behind the first may be
  // empty; it then copies the state it reads.
  struct Run {
    int64_t first, count;
    int32_t from, to;
  };
  // Per row, the runs between its snapshots, in order.
  static std::vector<std::vector<Run>> runs(const StepInput& step);

 private:
  void check_part(int64_t id, int64_t at, int64_t size) const;
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
