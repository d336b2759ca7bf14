#include "model/changes.h"

#include <algorithm>
#include <thread>

namespace tidemill {

namespace {

// What an item of work computes: some rows of A times some rows of activations.
constexpr int64_t kRanks = 4, kRows = 64;
constexpr int kSpins = 4096;
// Up to this many rows, B is prefetched, so many bytes at once.
constexpr int64_t kFewRows = 32, kPrefetchedBytes = int64_t{32} << 10;

void prefetch_bytes(const uint8_t* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(data + at, 0, 2);
}

int64_t panel_bytes(const LowRank& low) { return low.rank * kPanel * (low.wide ? 4 : 2); }

int64_t pieces(int64_t count, int64_t each) { return (count + each - 1) / each; }

}  // namespace

void ProductChanges::add(const Linear& linear, const Acts& acts, int64_t first, int64_t rows) {
  if (jobs_.empty()) made_floats_ = items_ = 0;
  for (const RowAdapters::Group& group : acts.adapters->groups()) {
    const MatrixChange* const change = group.adapter->of(linear);
    if (change == nullptr) continue;
    const auto begin = std::lower_bound(group.rows.begin(), group.rows.end(), first);
    const auto end = std::lower_bound(begin, group.rows.end(), first + rows);
    if (begin == end) continue;
    const int64_t count = end - begin, rank = change->low.rank;
    jobs_.push_back({&linear, change, &*begin, count, made_floats_, items_});
    made_floats_ += round_up(count * rank, 16);
    items_ += pieces(rank, kRanks) * pieces(count, kRows);
  }
}

void ProductChanges::prepare(const Acts& acts) {
  acts_ = &acts;
  made_.ensure(made_floats_);
  next_.store(0, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);  // the loop's start publishes all of this
}

void ProductChanges::help() {
  while (next_.load(std::memory_order_relaxed) < items_) {
    const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) return;
    compute(item);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void ProductChanges::await() const {
  for (int spins = 0; done_.load(std::memory_order_acquire) < items_; ++spins) {
    if (spins >= kSpins) std::this_thread::yield();  // its thread was descheduled
  }
}

void ProductChanges::compute(int64_t i) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), i,
                                    [](int64_t at, const Job& j) { return at < j.first_item; }) - 1;
  const LowRank& low = job->change->low;
  const int64_t blocks = pieces(job->count, kRows), item = i - job->first_item;
  const int64_t r = item / blocks * kRanks, row = item % blocks * kRows;
  if (job->count <= kFewRows && r + kRanks < low.rank) {
    // What the next item reads, while this one is computed.
    prefetch_bytes(low.a + (r + kRanks) * low.a_stride, std::min(kRanks, low.rank - r - kRanks) * low.a_stride);
  }
  const int act = static_cast<int>(low.act());
  kernels_.low_rank_down(low, acts_->row(act, 0), acts_->stride[act], job->rows + row,
                         std::min(kRows, job->count - row), r, std::min(low.rank, r + kRanks),
                         made_.data() + job->at + row * low.rank);
}

int64_t ProductChanges::panels_at_once(const Linear& linear, int64_t row, int64_t rows, int64_t count) const {
  if (rows > kFewRows) return count;
  int64_t bytes = 1;
  for_each_of(linear, [&](const Job& job) {
    if (within(job, row, rows).count > 0) bytes += panel_bytes(job.change->low);
  });
  return std::clamp<int64_t>(kPrefetchedBytes / bytes, 1, count);
}

void ProductChanges::prefetch(const Linear& linear, int64_t row, int64_t rows, int64_t first,
                              int64_t count) const {
  if (rows > kFewRows) return;
  for_each_of(linear, [&](const Job& job) {
    if (within(job, row, rows).count == 0) return;
    const int64_t bytes = panel_bytes(job.change->low);
    prefetch_bytes(job.change->low.b + first * bytes, count * bytes);
  });
}

ProductChanges::Rows ProductChanges::within(const Job& job, int64_t row, int64_t rows) const {
  const int32_t* const end = job.rows + job.count;
  const int32_t* const from = std::lower_bound(job.rows, end, row);
  const int32_t* const to = std::lower_bound(from, end, row + rows);
  return {from, to - from, made_.data() + job.at + (from - job.rows) * job.change->low.rank};
}

}  // namespace tidemill
