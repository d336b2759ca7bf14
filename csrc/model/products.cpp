#include "model/products.h"

#include "memory/memory.h"

namespace tidemill {

namespace {

// Bytes of activations per block, so that they stay in L2 while the panels stream past: a little over
// half of it. (Using all of a 1 MiB cache makes a prefill 2 to 6 % slower.)
int64_t act_block_bytes() {
  static const int64_t bytes = std::max<int64_t>(512 << 10, cache_bytes(2) / 16 * 9);
  return bytes;
}

// Height of equal blocks (only the last may be lower), as few as possible, at most `most` (a multiple
// of 16).
int64_t block_height(int64_t rows, int64_t most) {
  const int64_t blocks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(16, round_up((rows + blocks - 1) / blocks, 16));
}

}  // namespace

Products::Products(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), changes_(kernels, pool.threads(), is_zen5_or_later()) {
  if (is_zen5_or_later()) kv_prefetch_.resize(static_cast<size_t>(pool.threads()));
}

// Panels of a block are consecutive items. The split does not change results, because a row's sums
// depend on the row alone.
Products::Plan Products::plan(const PackedMatrix& w, int64_t rows, int64_t first) const {
  const int64_t act_bytes = kernels_.act_row_bytes(w.act, w.k);
  const int64_t row_block =
      block_height(rows, std::max<int64_t>(16, act_block_bytes() / act_bytes / 16 * 16));
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const int64_t panels = (w.n + kPanel - 1) / kPanel;
  return {first, panels * row_blocks, panels, row_block};
}

void Products::multiply(const Product* products, size_t count, const Acts& acts) {
  changes_.clear();
  if (acts.adapters != nullptr) {
    for (const Product* product = products; product < products + count; ++product) {
      changes_.add(*product->linear, acts, product->first_row, product->rows);
    }
    if (!changes_.empty()) changes_.prepare(acts, next_);
  }
  next_ = {};
  if (Profile* const profile = pool_.profile(); profile != nullptr) {
    for (const Product* p = products; p < products + count; ++p) tell(*profile, *p->linear->weight, p->rows);
  }
  plans_.clear();
  int64_t items = 0;
  for (const Product* product = products; product < products + count; ++product) {
    plans_.push_back(plan(*product->linear->weight, product->rows, items));
    items += plans_.back().items;
  }
  pool_.run_tapered(items, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end;) {
      const auto after = std::upper_bound(plans_.begin(), plans_.end(), i,
                                          [](int64_t at, const Plan& p) { return at < p.first; });
      const Plan& of = *(after - 1);
      const Product& product = products[&of - plans_.data()];
      Block block = block_at(of, product.rows, i - of.first, end - i);
      i += block.count;
      float* const out = product.out + block.row * product.ldo + block.first * kPanel;
      block.row += product.first_row;
      compute(*product.linear, acts, block, out, product.ldo, thread);
    }
  });
}

void Products::prepare(std::initializer_list<const Linear*> linears, int64_t rows, const Acts& acts) {
  if (Profile* const profile = pool_.profile(); profile != nullptr) {
    for (const Linear* linear : linears) tell(*profile, *linear->weight, rows);
  }
  changes_.clear();
  if (acts.adapters == nullptr) return;
  for (const Linear* linear : linears) changes_.add(*linear, acts, 0, rows);
  if (!changes_.empty()) changes_.prepare(acts, next_);
  next_ = {};
}

// Each block of rows reads all panels.
void Products::tell(Profile& profile, const PackedMatrix& w, int64_t rows) const {
  profile.next({Kernel::Product, static_cast<int8_t>(w.type), static_cast<int8_t>(w.act),
                rows <= Profile::kFewRows, plan(w, rows).items * w.panel_bytes, 2 * rows * w.n * w.k});
}

void Products::compute(const Linear& linear, const Acts& acts, const Block& block, float* out,
                       int64_t ldo, int thread) {
  KvPrefetch* const kv = kv_prefetch_.empty() ? nullptr : &kv_prefetch_[static_cast<size_t>(thread)];
  if (changes_.empty()) return multiply_block(*linear.weight, linear.bias, acts, block, out, ldo, kv);
  changes_.help(thread);
  const int64_t most = changes_.panels_at_once(linear, block.row, block.rows, block.count);
  for (int64_t p = 0; p < block.count; p += most) {
    const Block part{block.row, block.rows, block.first + p, std::min(most, block.count - p)};
    float* const to = out + p * kPanel;
    KvPrefetch* const ahead =
        changes_.prefetch(linear, part.row, part.rows, part.first, part.count, thread, kv);
    multiply_block(*linear.weight, linear.bias, acts, part, to, ldo, ahead);
    changes_.await();
    change_block(linear, acts, part, to, ldo);
  }
}

void Products::change_block(const Linear& linear, const Acts& acts, const Block& block, float* out,
                            int64_t ldo) {
  changes_.for_each_of(linear, [&](const ProductChanges::Job& job) {
    const ProductChanges::Rows of = changes_.within(job, block.row, block.rows);
    if (of.count == 0) return;
    const MatrixChange& change = *job.change;
    if (change.replaced.data != nullptr) {
      for (int64_t i = 0, run; i < of.count; i += run) {
        const int64_t row = of.rows[i];
        for (run = 1; i + run < of.count && of.rows[i + run] == row + run;) ++run;
        multiply_block(change.replaced, linear.bias, acts, {row, run, block.first, block.count},
                       out + (row - block.row) * ldo, ldo, nullptr);
      }
    }
    if (!change.changes_outputs()) return;
    kernels_.low_rank_up(change.low, of.made, of.rows, of.count, block.row, block.first,
                         block.first + block.count, out, ldo);
  });
}

void Products::multiply_block(const PackedMatrix& weight, const float* bias, const Acts& acts,
                              const Block& block, float* out, int64_t ldo, KvPrefetch* ahead) {
  PackedMatrix w = weight;  // from the block's first panel on
  const int64_t n0 = block.first * kPanel;
  w.n -= n0;
  w.data += block.first * w.panel_bytes;
  const int act = static_cast<int>(w.act);
  kernels_.gemm(w, acts.row(act, block.row), acts.stride[act], block.rows, 0, block.count,
                bias ? bias + n0 : nullptr, out, ldo, pool_.threads() == 1, ahead);
}

void Products::prefetch(const LinearList& linears, int64_t rows) {
  expect(linears);
  IdlePrefetcher& prefetcher = pool_.idle_prefetcher();
  prefetcher.clear();
  const auto each = [&](auto&& body) {
    int64_t first = 0;
    for (const Linear* linear : linears) {
      if (linear == nullptr || !*linear) continue;
      const Plan p = plan(*linear->weight, rows, first);
      first += p.items;
      body(*linear->weight, p);
    }
    return first;
  };
  const int64_t items = each([](const PackedMatrix&, const Plan&) {});
  int thread = 0;
  each([&](const PackedMatrix& w, const Plan& p) {
    for (; thread < pool_.threads(); ++thread) {
      const auto [begin, end] = pool_.share(items, thread);
      if (begin >= p.first + p.items) break;
      const int64_t p0 = (begin - p.first) % p.panels;
      prefetcher.add(thread, w.data + p0 * w.panel_bytes,
                     std::min(end - begin, p.panels - p0) * w.panel_bytes);
    }
  });
}

}  // namespace tidemill
