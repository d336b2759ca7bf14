// How the decoder's products are cut into the items of a loop, and what is brought closer for them.
#include <algorithm>

#include "decoder.h"
#include "memory.h"

namespace tidemill {

namespace {

// Bytes of activations a product works on at a time, so that they stay in the L2 cache while the
// panels pass: half of it and a little (with all of a cache of 1 MiB a prefill takes 2 to 6 % longer).
int64_t act_block_bytes() {
  static const int64_t bytes = std::max<int64_t>(512 << 10, cache_bytes(2) / 16 * 9);
  return bytes;
}

// Bytes of keys and values that are brought closer beside products: so much of a cache that all threads
// share is still there when they are read.
int64_t beside_bytes() {
  static const int64_t bytes = cache_bytes(3) / 5 * 3;
  return bytes;
}

int64_t panels_of(const PackedMatrix& w) { return (w.n + kPanel - 1) / kPanel; }

// Height of as few blocks as rows need, none higher than most (a multiple of 16) and all but the
// last alike.
int64_t block_height(int64_t rows, int64_t most) {
  const int64_t blocks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(16, round_up((rows + blocks - 1) / blocks, 16));
}

}  // namespace

// An item is a block of activation rows times a panel, the panels of a block side by side; cutting
// changes no result, since a row's sums depend on nothing but the row.
Decoder::Cut Decoder::cut(const PackedMatrix& w, int64_t rows, int64_t first) const {
  const int64_t act_bytes = kernels_.act_row_bytes(w.act, w.k);
  const int64_t row_block =
      block_height(rows, std::max<int64_t>(16, act_block_bytes() / act_bytes / 16 * 16));
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const int64_t panels = panels_of(w);
  return {first, panels * row_blocks, panels, row_block};
}

// All products of a phase share one loop.
void Decoder::multiply(const Product* products, size_t count, Acts& acts) {
  cuts_.clear();
  int64_t items = 0;
  for (const Product* product = products; product < products + count; ++product) {
    cuts_.push_back(cut(*product->linear->weight, product->rows, items));
    items += cuts_.back().items;
  }
  pool_.run_tapered(items, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end;) {
      const auto after = std::upper_bound(cuts_.begin(), cuts_.end(), i,
                                          [](int64_t at, const Cut& c) { return at < c.first; });
      const Cut& cut = *(after - 1);
      const Product& product = products[&cut - cuts_.data()];
      const PackedMatrix& w = *product.linear->weight;
      const int64_t m0 = (i - cut.first) / cut.panels * cut.row_block;
      const int64_t p0 = (i - cut.first) % cut.panels;
      const int64_t p1 = std::min(cut.panels, p0 + end - i);
      i += p1 - p0;
      const int act = static_cast<int>(w.act);
      kernels_.gemm(w, acts.row(act, product.first_row + m0), acts.stride[act],
                    std::min(cut.row_block, product.rows - m0), p0, p1, product.linear->bias,
                    product.out + m0 * product.ldo, product.ldo, pool_.threads() == 1,
                    beside(thread));
    }
  });
}

void Decoder::expect(std::initializer_list<const Linear*> linears) {
  Ahead& ahead = pool_.ahead();
  ahead.clear();
  int64_t items = 0;
  for (const Linear* linear : linears) {
    if (*linear) items += cut(*linear->weight, tokens_, items).items;
  }
  int64_t first = 0;
  int thread = 0;
  for (const Linear* linear : linears) {
    if (!*linear) continue;
    const PackedMatrix& w = *linear->weight;
    const Cut c = cut(w, tokens_, first);
    first += c.items;
    for (; thread < pool_.threads(); ++thread) {
      const auto [begin, end] = pool_.share(items, thread);
      if (begin >= first) break;
      const int64_t p0 = (begin - c.first) % c.panels;
      ahead.add(thread, w.data + p0 * w.panel_bytes,
                std::min(end - begin, c.panels - p0) * w.panel_bytes);
    }
  }
}

void Decoder::read_beside(size_t l, const KvCache& cache) {
  for (Beside& of : beside_) of = Beside{};
  while (++l < model_.layers.size() && !model_.layers[l].attends) {}
  if (l >= model_.layers.size()) return;
  const auto [kv, plan] = keys_of(l, cache);
  for (size_t thread = 0; thread < beside_.size(); ++thread) {
    const std::vector<ByteRange>& reads =
        plan->reads(*kv, static_cast<int>(thread), beside_bytes() / pool_.threads());
    beside_[thread] = {kv->base, reads.data(), reads.data() + reads.size()};
  }
}

void Decoder::expect_layer(size_t l) {
  if (l >= model_.layers.size()) return expect({&model_.lm_head});
  const DecoderLayer& layer = model_.layers[l];
  if (layer.latent) return expect({&layer.latent->kv_down, &layer.latent->q_down});
  if (layer.attends) return expect({&layer.q, &layer.k, &layer.v});
  layer.recurrent ? pool_.ahead().clear() : expect_feed(layer);
}

}  // namespace tidemill
