#include "model/changes.h"

#include <algorithm>
#include <thread>

namespace tidemill {

namespace {

// What an item of work computes: some rows of A times some rows of activations.
constexpr int64_t kRanks = 4, kRows = 64;
constexpr int kSpins = 4096;
// Up to this many rows, B is prefetched, so many bytes at once.
constexpr int64_t kFewRows = 32, kPrefetchedBytes = int64_t{64} << 10;
// From so many rows on a product computes long enough for each line of weights that it can prefetch others.
constexpr int64_t kAheadRows = 12;

void prefetch_bytes(const uint8_t* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(data + at, 0, 2);
}

int64_t panel_bytes(const LowRank& low) { return low.rank * kPanel * (low.wide ? 4 : 2); }

int64_t pieces(int64_t count, int64_t each) { return (count + each - 1) / each; }

}  // namespace

void ProductChanges::add(const Linear& linear, const Acts& acts, int64_t first, int64_t rows) {
  if (jobs_.empty()) made_floats_ = items_ = 0;
  const size_t before = jobs_.size();
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
  if (jobs_.size() > before) products_.push_back({&linear, before, jobs_.size()});
}

void ProductChanges::prepare(const Acts& acts, const std::array<const Linear*, 3>& next) {
  acts_ = &acts;
  made_.ensure(made_floats_);
  const auto threads = static_cast<int64_t>(lanes_.size());
  for (int64_t t = 0; t < threads; ++t) {
    Lane& lane = lanes_[static_cast<size_t>(t)];
    lane.next.store(items_ * t / threads, std::memory_order_relaxed);
    lane.end = items_ * (t + 1) / threads;
  }
  share_a(acts, next);
  done_.store(0, std::memory_order_relaxed);  // the loop's start publishes all of this
}

// The same shares as those of the items when these products are computed.
void ProductChanges::share_a(const Acts& acts, const std::array<const Linear*, 3>& next) {
  for (Ahead& of : ahead_) {
    of.a.clear();
    of.ranges.clear();
    of.a_at = of.b_count = 0;
    of.list = KvPrefetch{};
  }
  if (ahead_.empty()) return;
  const auto each = [&](auto&& body) {
    for (const Linear* linear : next) {
      if (linear == nullptr || !*linear) continue;
      for (const RowAdapters::Group& group : acts.adapters->groups()) {
        const MatrixChange* const change = group.adapter->of(*linear);
        if (change != nullptr && change->low.rank > 0) body(change->low);
      }
    }
  };
  int64_t total = 0, at = 0;
  each([&](const LowRank& low) { total += pieces(low.rank, kRanks); });
  const auto threads = static_cast<int64_t>(ahead_.size());
  each([&](const LowRank& low) {
    const int64_t count = pieces(low.rank, kRanks);
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t from = std::max(total * t / threads, at), to = std::min(total * (t + 1) / threads, at + count);
      if (from >= to) continue;
      const int64_t r = (from - at) * kRanks, end = std::min((to - at) * kRanks, low.rank);
      ahead_[static_cast<size_t>(t)].a.push_back(range(low.a + r * low.a_stride, (end - r) * low.a_stride));
    }
    at += count;
  });
}

ByteRange ProductChanges::range(const uint8_t* data, int64_t bytes) const {
  const auto from = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(base()));
  return {from, from + bytes};
}

void ProductChanges::help(int thread) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[(static_cast<size_t>(thread) + i) % lanes_.size()];
    while (lane.next.load(std::memory_order_relaxed) < lane.end) {
      const int64_t item = lane.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= lane.end) break;
      compute(item);
      done_.fetch_add(1, std::memory_order_release);
    }
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

KvPrefetch* ProductChanges::prefetch(const Linear& linear, int64_t row, int64_t rows, int64_t first,
                                     int64_t count, int thread, KvPrefetch* otherwise) {
  if (rows > kFewRows) return otherwise;
  const auto each = [&](auto&& body) {
    for_each_of(linear, [&](const Job& job) {
      if (within(job, row, rows).count == 0) return;
      const int64_t bytes = panel_bytes(job.change->low);
      body(job.change->low.b + first * bytes, count * bytes);
    });
  };
  if (ahead_.empty() || rows < kAheadRows) {
    each(prefetch_bytes);
    return otherwise;
  }
  Ahead& of = ahead_[static_cast<size_t>(thread)];
  // What the last product has begun of A is over, but for the range that it did not finish.
  const auto begun = static_cast<size_t>(of.list.next - of.ranges.data());
  if (!of.ranges.empty() && begun > of.b_count) {
    of.a_at += begun - of.b_count;
    if (of.list.at < of.list.to) of.a[--of.a_at].from = of.list.at - of.list.base;
  }
  of.ranges.clear();
  each([&](const uint8_t* data, int64_t bytes) { of.ranges.push_back(range(data, bytes)); });
  of.b_count = of.ranges.size();
  of.ranges.insert(of.ranges.end(), of.a.begin() + static_cast<int64_t>(of.a_at), of.a.end());
  if (of.ranges.empty()) return otherwise;
  of.list = {base(), of.ranges.data(), of.ranges.data() + of.ranges.size()};
  return &of.list;
}

ProductChanges::Rows ProductChanges::within(const Job& job, int64_t row, int64_t rows) const {
  const int32_t* const end = job.rows + job.count;
  if (job.count > 0 && row <= *job.rows && end[-1] < row + rows) return {job.rows, job.count, made_.data() + job.at};
  const int32_t* const from = std::lower_bound(job.rows, end, row);
  const int32_t* const to = std::lower_bound(from, end, row + rows);
  return {from, to - from, made_.data() + job.at + (from - job.rows) * job.change->low.rank};
}

}  // namespace tidemill
