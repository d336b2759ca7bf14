#include "states.h"

#include <string>

#include "error.h"

namespace tidemill {

namespace {

constexpr int64_t kNothing = -1;

int32_t read_of(const StepInput& step, int64_t row) {
  return step.states.values[static_cast<size_t>(2 * row)];
}

int32_t written_by(const StepInput& step, int64_t row) {
  return step.states.values[static_cast<size_t>(2 * row + 1)];
}

}  // namespace

void StatePool::allocate(int64_t count) {
  if (!needed()) return;
  if (count < 1 || count > INT32_MAX) {
    throw Error(ErrorKind::Config, "a recurrent model needs states, got " + std::to_string(count));
  }
  int64_t bytes;
  if (__builtin_mul_overflow(count, state_bytes(), &bytes)) {
    throw Error(ErrorKind::Resource, "the recurrent states asked for exceed any address space");
  }
  region_ = Region(static_cast<size_t>(bytes), "the recurrent states");
  covers_.assign(static_cast<size_t>(count), kNothing);
}

void StatePool::free() {
  region_ = Region();
  covers_.clear();
}

void StatePool::check(const StepInput& step) const {
  if (!needed()) return;
  const int64_t rows = step.rows();
  if (step.states.rows != rows || (rows > 0 && step.states.columns != 2)) {
    throw internal_error("states: each row of a recurrent model reads one and writes one",
                         "states");
  }
  std::vector<bool> taken(covers_.size(), false);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t from = read_of(step, r), to = written_by(step, r);
    const auto known = [&](int32_t id) { return id >= 0 && id < count(); };
    const bool fresh = step.context_len[static_cast<size_t>(r)] == 0;
    if (!known(to) || (fresh ? from != -1 : !known(from)) || from == to) {
      throw internal_error("states: row " + std::to_string(r) + " reads " + std::to_string(from) +
                               " and writes " + std::to_string(to), "states");
    }
    if (taken[static_cast<size_t>(to)]) {
      throw internal_error("states: two rows write the same", "states");
    }
    taken[static_cast<size_t>(to)] = true;
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (read_of(step, r) >= 0 && taken[static_cast<size_t>(read_of(step, r))]) {
      throw internal_error("states: a row reads what another writes", "states");
    }
  }
}

void StatePool::begin(const StepInput& step) {
  if (!needed()) return;
  for (int64_t r = 0; r < step.rows(); ++r) {
    const int32_t from = read_of(step, r);
    const int64_t before = step.context_len[static_cast<size_t>(r)];
    if (from >= 0 && covers_[static_cast<size_t>(from)] != before) {
      throw internal_error("states: the state of row " + std::to_string(r) + " covers " +
                               std::to_string(covers_[static_cast<size_t>(from)]) +
                               " tokens, not " + std::to_string(before), "states");
    }
  }
  for (int64_t r = 0; r < step.rows(); ++r) {
    covers_[static_cast<size_t>(written_by(step, r))] = kNothing;
  }
}

void StatePool::commit(const StepInput& step) {
  if (!needed()) return;
  for (int64_t r = 0; r < step.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    covers_[static_cast<size_t>(written_by(step, r))] =
        step.context_len[i] + step.row_start[i + 1] - step.row_start[i];
  }
}

}  // namespace tidemill
