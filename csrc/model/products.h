// The one place where the decoder multiplies by weights.
//
// A block issues its products with `multiply`, or, where it uses what a product yields at once, block by
// block with `for_each_block`. Either way each block of rows and panels is computed by `compute`: no
// other code calls a kernel's gemm. What concerns every product of every model attaches here:
//
// - Adapters (low-rank updates, W x + B (A x)): a Linear's id tells which matrix of which layer is
//   multiplied, and a block which of the packed rows. `compute` adds B (A x) to its panels after the
//   kernel; A x is computed before the loop starts, by `multiply` or `prepare`. Rows without an adapter
//   get the arithmetic they have without adapters (promise 6).
// - Tensor parallelism: a Linear may have a shard's rows (shard.h). Blocks have the outputs of all shards
//   gathered where the next block reads them (StepContext::gather).
// - Prefetching, of the weights that later products read and of K and V.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/kernels.h"
#include "model/acts.h"
#include "model/changes.h"
#include "model/linear.h"
#include "runtime/threadpool.h"

namespace tidemill {

// A product of rows of packed activations with one matrix, into out [rows, ldo].
struct Product {
  const Linear* linear;
  float* out;
  int64_t ldo;
  int64_t first_row, rows;  // of the packed activations
};

// The next products: null and linears without a weight are skipped.
using LinearList = std::array<const Linear*, 3>;

class Products {
 public:
  Products(const KernelTable& kernels, ThreadPool& pool);

  // Computes all products in one loop.
  void multiply(const Product* products, size_t count, const Acts& acts);
  void multiply(std::initializer_list<Product> products, const Acts& acts) {
    multiply(products.begin(), products.size(), acts);
  }

  // Rows [row, row + rows) of the activations times panels [first, first + count).
  struct Block {
    int64_t row, rows;
    int64_t first, count;
  };
  // How one product is split into the items of a loop: one block of rows times one panel each.
  struct Plan {
    int64_t first, items;
    int64_t panels, row_block;
  };
  Plan plan(const PackedMatrix& w, int64_t rows, int64_t first = 0) const;
  // Runs body(block, thread) for blocks of at most `most_panels` panels that together cover `plan`, for
  // products that are computed block by block and used at once.
  template <class Body>
  void for_each_block(const Plan& plan, int64_t rows, int64_t most_panels, Body&& body) {
    pool_.run_tapered(plan.items, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end;) {
        const Block block = block_at(plan, rows, i, std::min(most_panels, end - i));
        body(block, thread);
        i += block.count;
      }
    });
  }
  // Before a loop over blocks of these products of `rows` rows: what adapters add to them.
  void prepare(std::initializer_list<const Linear*> linears, int64_t rows, const Acts& acts);
  // Computes one block, into out [rows, ldo], whose first column is the first output of the block's
  // first panel. Called by the threads of a loop.
  void compute(const Linear& linear, const Acts& acts, const Block& block, float* out, int64_t ldo,
               int thread);

  // Says which products come after the next ones: what adapters read for them is prefetched meanwhile.
  void expect(const LinearList& linears) { next_ = linears; }
  // The same, and sets what waiting threads prefetch: the weights with which their shares of these
  // products of `rows` rows begin.
  void prefetch(const LinearList& linears, int64_t rows);
  // Per thread, the K and V that products prefetch while they run; empty: not used on this processor.
  std::vector<KvPrefetch>& kv_prefetch() { return kv_prefetch_; }

 private:
  // The block of `plan` at item i, of at most `most_panels` panels.
  static Block block_at(const Plan& plan, int64_t rows, int64_t i, int64_t most_panels) {
    const int64_t row = i / plan.panels * plan.row_block, first = i % plan.panels;
    return {row, std::min(plan.row_block, rows - row), first,
            std::min(most_panels, plan.panels - first)};
  }

  // Tells the profile of a product that the next loop computes.
  void tell(Profile& profile, const PackedMatrix& w, int64_t rows) const;
  void multiply_block(const PackedMatrix& weight, const float* bias, const Acts& acts, const Block& block,
                      float* out, int64_t ldo, KvPrefetch* ahead);
  void change_block(const Linear& linear, const Acts& acts, const Block& block, float* out, int64_t ldo);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  ProductChanges changes_;
  LinearList next_{};
  std::vector<Plan> plans_;
  std::vector<KvPrefetch> kv_prefetch_;
};

}  // namespace tidemill
