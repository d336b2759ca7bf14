#include "model/partial_rows.h"

#include <cstring>
#include <string>

#include "runtime/error.h"

namespace tidemill {

namespace {

struct LastRow {
  explicit LastRow(const StepInput& step)
      : start(step.context_len.back()),
        count(step.row_start.back() - step.row_start[step.row_start.size() - 2]) {}
  size_t bytes(int64_t hidden) const { return static_cast<size_t>(count * hidden) * sizeof(float); }
  int64_t start, count;
};

}  // namespace

void PartialRows::restore(const StepInput& step, int64_t hidden, float* x) {
  const LastRow last(step);
  const Row wanted{step.slice.sequence, last.start, last.count, step.slice.begin};
  for (size_t i = 0; i < 2; ++i) {
    if (!rows_[i].same(wanted)) continue;
    std::memcpy(x, rows_[i].x.data(), last.bytes(hidden));
    restored_ = i;
    return;
  }
  throw internal_error("slice: no step left the row's input of layer " +
                       std::to_string(step.slice.begin), "slice");
}

void PartialRows::save(const StepInput& step, int64_t hidden, const float* x) {
  const LastRow last(step);
  Row& left = rows_[step.slice.begin > 0 ? 1 - restored_ : 0];
  left.sequence = -1;  // invalid while it is written
  std::memcpy(left.x.ensure(last.count * hidden), x, last.bytes(hidden));
  left.start = last.start;
  left.count = last.count;
  left.layer = step.slice.end;
  left.sequence = step.slice.sequence;
}

}  // namespace tidemill
