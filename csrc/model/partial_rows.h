// Hidden states of a row between the steps that compute its layers (LayerSlice).
#pragma once
#include <cstdint>

#include "memory/memory.h"
#include "runtime/step.h"

namespace tidemill {

class PartialRows {
 public:
  // x of the step's last row, [its tokens, hidden], as the step left it that computed the layers before
  // this slice. Error (Internal) if none did.
  void restore(const StepInput& step, int64_t hidden, float* x);
  // Saves it for the step that continues. What this step resumed from is kept too, because the step may
  // be computed again.
  void save(const StepInput& step, int64_t hidden, const float* x);

 private:
  struct Row {
    int64_t sequence = -1, start = 0, count = 0, layer = 0;
    Buffer<float> x{};
    bool same(const Row& other) const {
      return sequence == other.sequence && start == other.start && count == other.count &&
             layer == other.layer;
    }
  };
  Row rows_[2];
  size_t restored_ = 0;  // index of the row that this step resumed
};

}  // namespace tidemill
