// The part of products that adapters add: which rows of which products are changed, and how.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "model/acts.h"
#include "model/adapters.h"
#include "model/linear.h"

namespace tidemill {

// Changes of the products of one loop. Empty where no row has an adapter that changes one of them; a row
// without one is in no list.
class ProductChanges {
 public:
  // One adapter's rows of one product.
  struct Job {
    const Linear* linear;
    const MatrixChange* change;
    const int32_t* rows;  // of the activations, ascending
    int64_t count;
    int64_t at;           // of its A x in `made`: [count, rank]
    int64_t first_item;
  };

  // `threads` that compute loops. `ahead`: products of several rows prefetch what adapters read (ahead()).
  ProductChanges(const KernelTable& kernels, int threads, bool ahead)
      : kernels_(kernels), lanes_(static_cast<size_t>(threads)), ahead_(ahead ? static_cast<size_t>(threads) : 0) {}

  bool empty() const { return jobs_.empty(); }
  void clear() {
    jobs_.clear();
    products_.clear();
  }
  // The product of rows [first, first + rows) of `acts` with a matrix.
  void add(const Linear& linear, const Acts& acts, int64_t first, int64_t rows);
  // After all products are added, before the loop that computes them. `next`: the products after them.
  void prepare(const Acts& acts, const std::array<const Linear*, 3>& next);
  // Called by the threads of the loop before they compute a block: A x of all rows, in items of which each
  // has a share, and which they take from one another. They need not meet for it: a block is computed
  // meanwhile.
  void help(int thread);
  // After the block: returns when A x is there. Who has taken an item waits for nobody.
  void await() const;
  // How many panels of a block of these rows to compute before they are changed, `count` at most: few
  // rows wait for B, which is prefetched meanwhile.
  int64_t panels_at_once(const Linear& linear, int64_t row, int64_t rows, int64_t count) const;
  // Has B of these panels prefetched, for few rows. Returns what the product of these panels is to
  // prefetch while it is computed (`otherwise`, where that is nothing): B, then the thread's share of the
  // next products' A.
  KvPrefetch* prefetch(const Linear& linear, int64_t row, int64_t rows, int64_t first, int64_t count,
                       int thread, KvPrefetch* otherwise);
  // Rows [row, row + rows) of the job.
  struct Rows {
    const int32_t* rows;
    int64_t count;
    const float* made;  // [count, rank]
  };
  Rows within(const Job& job, int64_t row, int64_t rows) const;
  // Runs body(job) for the jobs of a product.
  template <class Body>
  void for_each_of(const Linear& linear, Body&& body) const {
    for (const Part& part : products_) {
      if (part.linear != &linear) continue;
      for (size_t i = part.first; i < part.end; ++i) body(jobs_[i]);
    }
  }

 private:
  // The jobs of one product.
  struct Part {
    const Linear* linear;
    size_t first, end;
  };
  // A thread's share of the items.
  struct alignas(64) Lane {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  // What a thread's products prefetch: ranges of B, then those of A that are left.
  struct alignas(64) Ahead {
    std::vector<ByteRange> a, ranges;
    size_t a_at = 0, b_count = 0;
    KvPrefetch list;
  };
  void compute(int64_t item);
  void share_a(const Acts& acts, const std::array<const Linear*, 3>& next);
  const uint8_t* base() const { return reinterpret_cast<const uint8_t*>(this); }  // of ranges
  ByteRange range(const uint8_t* data, int64_t bytes) const;

  const KernelTable& kernels_;
  const Acts* acts_ = nullptr;
  std::vector<Job> jobs_;
  std::vector<Part> products_;
  int64_t made_floats_ = 0, items_ = 0;
  Buffer<float> made_;
  std::vector<Lane> lanes_;
  std::vector<Ahead> ahead_;  // empty: not used on this processor
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace tidemill
