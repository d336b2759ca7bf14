#include "memory/states.h"

#include <cstring>
#include <string>

#include "runtime/error.h"

namespace tidemill {

namespace {

constexpr int64_t kNothing = -1;

int32_t read_of(const StepInput& step, int64_t row) {
  return step.states.values[static_cast<size_t>(2 * row)];
}

int32_t written_by(const StepInput& step, int64_t row) {
  return step.states.values[static_cast<size_t>(2 * row + 1)];
}

struct Snapshot {
  int64_t row, tokens;
  int32_t state;
};

Snapshot snapshot_of(const StepInput& step, int64_t i) {
  const int32_t* const values = step.snapshots.values.data() + 3 * i;
  return {values[0], values[1], values[2]};
}

int64_t tokens_of(const StepInput& step, int64_t row) {
  const auto i = static_cast<size_t>(row);
  return step.row_start[i + 1] - step.row_start[i];
}

}  // namespace

void StatePool::allocate(int64_t count) {
  if (!needed()) return;
  if (count < 1 || count > INT32_MAX) {
    throw Error(ErrorKind::Config, "a recurrent model needs states, got " + std::to_string(count));
  }
  int64_t bytes;
  if (__builtin_mul_overflow(count, state_bytes(), &bytes)) {
    throw Error(ErrorKind::Resource, "the requested recurrent states exceed any address space");
  }
  region_ = Region(static_cast<size_t>(bytes), "the recurrent states");
  covers_.assign(static_cast<size_t>(count), kNothing);
}

void StatePool::free() {
  region_ = Region();
  covers_.clear();
}

void StatePool::check_part(int64_t id, int64_t at, int64_t size) const {
  if (id < 0 || id >= count() || at < 0 || size < 0 || size > state_bytes() - at) {
    throw internal_error("bytes " + std::to_string(at) + " to " + std::to_string(at + size) +
                             " of state " + std::to_string(id) + " do not exist", "states");
  }
}

void StatePool::read(int64_t id, int64_t at, int64_t size, uint8_t* out) const {
  check_part(id, at, size);
  std::memcpy(out, region_.data() + id * state_bytes() + at, static_cast<size_t>(size));
}

void StatePool::write(int64_t id, int64_t at, int64_t size, const uint8_t* bytes, int64_t tokens) {
  check_part(id, at, size);
  covers_[static_cast<size_t>(id)] = kNothing;
  std::memcpy(region_.data() + id * state_bytes() + at, bytes, static_cast<size_t>(size));
  covers_[static_cast<size_t>(id)] = tokens;
}

void StatePool::check(const StepInput& step) const {
  if (!advance(step)) return;
  const int64_t rows = step.rows();
  if (step.states.rows != rows || (rows > 0 && step.states.columns != 2)) {
    throw internal_error("states: each row of a recurrent model reads one and writes one",
                         "states");
  }
  std::vector<bool> taken(covers_.size(), false);
  const auto known = [&](int32_t id) { return id >= 0 && id < count(); };
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t from = read_of(step, r), to = written_by(step, r);
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
  check_snapshots(step, taken);
  for (int64_t r = 0; r < rows; ++r) {
    if (read_of(step, r) >= 0 && taken[static_cast<size_t>(read_of(step, r))]) {
      throw internal_error("states: a row reads what another writes", "states");
    }
  }
}

void StatePool::check_snapshots(const StepInput& step, std::vector<bool>& taken) const {
  const Int32Table& table = step.snapshots;
  for (int64_t i = 0; i < table.rows; ++i) {
    if (table.columns != 3) throw internal_error("snapshots: have three columns", "snapshots");
    const Snapshot s = snapshot_of(step, i);
    bool good = s.row >= 0 && s.row < step.rows() && s.state >= 0 && s.state < count() &&
                !taken[static_cast<size_t>(s.state)];
    good = good && s.tokens > 0 && s.tokens <= tokens_of(step, s.row);
    if (good && i > 0) {  // sorted by row, then by token; several states may be of one token
      const Snapshot before = snapshot_of(step, i - 1);
      good = before.row < s.row || (before.row == s.row && before.tokens <= s.tokens);
    }
    if (!good) {
      throw internal_error("snapshots: row " + std::to_string(s.row) + " cannot leave state " +
                               std::to_string(s.state) + " after " + std::to_string(s.tokens) +
                               " tokens", "snapshots");
    }
    taken[static_cast<size_t>(s.state)] = true;
  }
}

std::vector<std::vector<StatePool::Run>> StatePool::runs(const StepInput& step) {
  std::vector<std::vector<Run>> all(static_cast<size_t>(step.rows()));
  const auto extend = [&](int64_t row, int64_t end, int32_t to) {
    std::vector<Run>& mine = all[static_cast<size_t>(row)];
    const bool first = mine.empty();
    const int64_t begin = first ? 0 : mine.back().first + mine.back().count;
    mine.push_back({begin, end - begin, first ? read_of(step, row) : mine.back().to, to});
  };
  for (int64_t i = 0; i < step.snapshots.rows; ++i) {
    const Snapshot s = snapshot_of(step, i);
    extend(s.row, s.tokens, s.state);
  }
  for (int64_t r = 0; r < step.rows(); ++r) extend(r, tokens_of(step, r), written_by(step, r));
  return all;
}

void StatePool::begin(const StepInput& step) {
  if (!advance(step)) return;
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
  for (int64_t i = 0; i < step.snapshots.rows; ++i) {
    covers_[static_cast<size_t>(snapshot_of(step, i).state)] = kNothing;
  }
}

void StatePool::commit(const StepInput& step) {
  if (!advance(step)) return;
  for (int64_t r = 0; r < step.rows(); ++r) {
    covers_[static_cast<size_t>(written_by(step, r))] =
        step.context_len[static_cast<size_t>(r)] + tokens_of(step, r);
  }
  for (int64_t i = 0; i < step.snapshots.rows; ++i) {
    const Snapshot s = snapshot_of(step, i);
    covers_[static_cast<size_t>(s.state)] =
        step.context_len[static_cast<size_t>(s.row)] + s.tokens;
  }
}

}  // namespace tidemill
