// The part of products that adapters add: which rows of which products are changed, and how.
#pragma once
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

  explicit ProductChanges(const KernelTable& kernels) : kernels_(kernels) {}

  bool empty() const { return jobs_.empty(); }
  void clear() { jobs_.clear(); }
  // The product of rows [first, first + rows) of `acts` with a matrix.
  void add(const Linear& linear, const Acts& acts, int64_t first, int64_t rows);
  // After all products are added, before the loop that computes them.
  void prepare(const Acts& acts);
  // Called by the threads of the loop before they compute a block: A x of all rows, in items that they
  // take from one another. They need not meet for it: a block is computed meanwhile.
  void help();
  // After the block: returns when A x is there. Who has taken an item waits for nobody.
  void await() const;
  // How many panels of a block of these rows to compute before they are changed, `count` at most: few
  // rows wait for B, which is prefetched meanwhile.
  int64_t panels_at_once(const Linear& linear, int64_t row, int64_t rows, int64_t count) const;
  // Prefetches B of these panels, for few rows.
  void prefetch(const Linear& linear, int64_t row, int64_t rows, int64_t first, int64_t count) const;
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
    for (const Job& job : jobs_) {
      if (job.linear == &linear) body(job);
    }
  }

 private:
  void compute(int64_t item);

  const KernelTable& kernels_;
  const Acts* acts_ = nullptr;
  std::vector<Job> jobs_;
  int64_t made_floats_ = 0, items_ = 0;
  Buffer<float> made_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace tidemill
