#include "model/changes.h"

#include <algorithm>

namespace tidemill {

namespace {

// What one item of the loop over A computes: some rows of A times some rows of activations.
constexpr int64_t kRanks = 4, kRows = 64;

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
  float* const made = made_.ensure(made_floats_);
  pool_.run_tapered(items_, 1, [&](int64_t begin, int64_t end, int) {
    auto job = std::upper_bound(jobs_.begin(), jobs_.end(), begin,
                                [](int64_t at, const Job& j) { return at < j.first_item; }) - 1;
    for (int64_t i = begin; i < end; ++i) {
      while (job + 1 != jobs_.end() && (job + 1)->first_item <= i) ++job;
      const LowRank& low = job->change->low;
      const int64_t blocks = pieces(job->count, kRows), item = i - job->first_item;
      const int64_t r = item / blocks * kRanks, row = item % blocks * kRows;
      const int act = static_cast<int>(low.act());
      kernels_.low_rank_down(low, acts.row(act, 0), acts.stride[act], job->rows + row,
                             std::min(kRows, job->count - row), r, std::min(low.rank, r + kRanks),
                             made + job->at + row * low.rank);
    }
  });
}

ProductChanges::Rows ProductChanges::within(const Job& job, int64_t row, int64_t rows) const {
  const int32_t* const end = job.rows + job.count;
  const int32_t* const from = std::lower_bound(job.rows, end, row);
  const int32_t* const to = std::lower_bound(from, end, row + rows);
  return {from, to - from, made_.data() + job.at + (from - job.rows) * job.change->low.rank};
}

}  // namespace tidemill
