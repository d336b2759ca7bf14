// The part of products that adapters add: which rows of which products are changed, and how.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "model/acts.h"
#include "model/adapters.h"
#include "model/linear.h"
#include "runtime/threadpool.h"

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

  ProductChanges(const KernelTable& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  bool empty() const { return jobs_.empty(); }
  void clear() { jobs_.clear(); }
  // The product of rows [first, first + rows) of `acts` with a matrix.
  void add(const Linear& linear, const Acts& acts, int64_t first, int64_t rows);
  // After all products are added: computes A x of all their rows.
  void prepare(const Acts& acts);
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
  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Job> jobs_;
  int64_t made_floats_ = 0, items_ = 0;
  Buffer<float> made_;
};

}  // namespace tidemill
