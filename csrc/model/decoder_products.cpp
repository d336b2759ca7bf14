// Splits matrix products into loop items and sets what is prefetched for and during them.
#include <algorithm>

#include "memory/memory.h"
#include "model/decoder.h"

namespace tidemill {

namespace {

// Bytes of activations per block, so that they stay in L2 while the panels stream past: a little over
// half of it. (Using all of a 1 MiB cache makes a prefill 2 to 6 % slower.)
int64_t act_block_bytes() {
  static const int64_t bytes = std::max<int64_t>(512 << 10, cache_bytes(2) / 16 * 9);
  return bytes;
}

// Bytes of K and V prefetched during products: a share of L3 small enough to survive until they are
// read.
int64_t kv_prefetch_bytes() {
  static const int64_t bytes = cache_bytes(3) / 5 * 3;
  return bytes;
}

int64_t panels_of(const PackedMatrix& w) { return (w.n + kPanel - 1) / kPanel; }

// Height of equal blocks (only the last may be lower), as few as possible, at most `most` (a multiple
// of 16).
int64_t block_height(int64_t rows, int64_t most) {
  const int64_t blocks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(16, round_up((rows + blocks - 1) / blocks, 16));
}

}  // namespace

// An item is one block of activation rows times one panel; panels of a block are consecutive. The split
// does not change results, because a row's sums depend on the row alone.
Decoder::ProductPlan Decoder::plan_product(const PackedMatrix& w, int64_t rows, int64_t first) const {
  const int64_t act_bytes = kernels_.act_row_bytes(w.act, w.k);
  const int64_t row_block =
      block_height(rows, std::max<int64_t>(16, act_block_bytes() / act_bytes / 16 * 16));
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const int64_t panels = panels_of(w);
  return {first, panels * row_blocks, panels, row_block};
}

// All products of a phase run in one loop.
void Decoder::multiply(const Product* products, size_t count, Acts& acts) {
  product_plans_.clear();
  int64_t items = 0;
  for (const Product* product = products; product < products + count; ++product) {
    product_plans_.push_back(plan_product(*product->linear->weight, product->rows, items));
    items += product_plans_.back().items;
  }
  pool_.run_tapered(items, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end;) {
      const auto after = std::upper_bound(product_plans_.begin(), product_plans_.end(), i,
                                          [](int64_t at, const ProductPlan& c) { return at < c.first; });
      const ProductPlan& plan = *(after - 1);
      const Product& product = products[&plan - product_plans_.data()];
      const PackedMatrix& w = *product.linear->weight;
      const int64_t m0 = (i - plan.first) / plan.panels * plan.row_block;
      const int64_t p0 = (i - plan.first) % plan.panels;
      const int64_t p1 = std::min(plan.panels, p0 + end - i);
      i += p1 - p0;
      const int act = static_cast<int>(w.act);
      kernels_.gemm(w, acts.row(act, product.first_row + m0), acts.stride[act],
                    std::min(plan.row_block, product.rows - m0), p0, p1, product.linear->bias,
                    product.out + m0 * product.ldo, product.ldo, pool_.threads() == 1,
                    kv_prefetch(thread));
    }
  });
}

void Decoder::prefetch_weights(std::initializer_list<const Linear*> linears) {
  IdlePrefetcher& prefetcher = pool_.idle_prefetcher();
  prefetcher.clear();
  int64_t items = 0;
  for (const Linear* linear : linears) {
    if (*linear) items += plan_product(*linear->weight, tokens_, items).items;
  }
  int64_t first = 0;
  int thread = 0;
  for (const Linear* linear : linears) {
    if (!*linear) continue;
    const PackedMatrix& w = *linear->weight;
    const ProductPlan c = plan_product(w, tokens_, first);
    first += c.items;
    for (; thread < pool_.threads(); ++thread) {
      const auto [begin, end] = pool_.share(items, thread);
      if (begin >= first) break;
      const int64_t p0 = (begin - c.first) % c.panels;
      prefetcher.add(thread, w.data + p0 * w.panel_bytes,
                std::min(end - begin, c.panels - p0) * w.panel_bytes);
    }
  }
}

void Decoder::prefetch_next_kv(size_t l, const KvCache& cache) {
  for (KvPrefetch& of : kv_prefetch_) of = KvPrefetch{};
  while (++l < model_.layers.size() && !model_.layers[l].has_attention) {}
  if (l >= model_.layers.size()) return;
  const auto [kv, plan] = layer_kv(l, cache);
  for (size_t thread = 0; thread < kv_prefetch_.size(); ++thread) {
    const std::vector<ByteRange>& ranges =
        plan->prefetch_ranges(*kv, static_cast<int>(thread), kv_prefetch_bytes() / pool_.threads());
    kv_prefetch_[thread] = {kv->base, ranges.data(), ranges.data() + ranges.size()};
  }
}

void Decoder::prefetch_layer(size_t l) {
  if (l >= model_.layers.size()) return prefetch_weights({&model_.lm_head});
  const DecoderLayer& layer = model_.layers[l];
  if (layer.latent) return prefetch_weights({&layer.latent->kv_down, &layer.latent->q_down});
  if (layer.has_attention) return prefetch_weights({&layer.q, &layer.k, &layer.v});
  layer.recurrent ? pool_.idle_prefetcher().clear() : prefetch_feed_forward(layer);
}

}  // namespace tidemill
