// How the decoder's products are cut into the items of a loop, and what is brought closer for them.
#include <algorithm>

#include "decoder.h"

namespace tidemill {

namespace {

// Rows of activations a product works on at a time, so that they stay in the L2 cache while the
// panels pass (with twice as many, which fill a cache of 1 MiB, a prefill takes 2 to 6 % longer).
constexpr int64_t kActBlockBytes = 512 << 10;
// A chunk of panels read by one thread: long enough for a sequential stream (with 192 KiB one row
// took 8 to 18 % longer), and several panels, since a product prefetches the next one.
constexpr int64_t kPanelChunkBytes = 1 << 20;
constexpr int64_t kPanelChunk = 4;
// Items a thread gets of a product, at least, so that threads end together. Few rows wait for the
// weights, which are best read in long streams; many wait for arithmetic and can be cut small.
constexpr int64_t kManyRows = 64;
constexpr int64_t kItemsOfFewRows = 4, kItemsOfManyRows = 16;

int64_t panels_of(const PackedMatrix& w) { return (w.n + kPanel - 1) / kPanel; }

// Height of as few blocks as rows need, none higher than most (a multiple of 16) and all but the
// last alike.
int64_t block_height(int64_t rows, int64_t most) {
  const int64_t blocks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(16, round_up((rows + blocks - 1) / blocks, 16));
}

}  // namespace

// An item is a block of activation rows times a chunk of panels; cutting changes no result, since a
// row's sums depend on nothing but the row.
Decoder::Cut Decoder::cut(const PackedMatrix& w, int64_t rows, int64_t first) const {
  const int64_t act_bytes = kernels_.act_row_bytes(w.act, w.k);
  const int64_t row_block =
      block_height(rows, std::max<int64_t>(16, kActBlockBytes / act_bytes / 16 * 16));
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const int64_t panels = panels_of(w);
  const int64_t each = rows < kManyRows ? kItemsOfFewRows : kItemsOfManyRows;
  const int64_t fair = std::max<int64_t>(1, panels * row_blocks / (each * pool_.threads()));
  const int64_t chunk =
      std::min(fair, std::max<int64_t>(kPanelChunk, kPanelChunkBytes / w.panel_bytes));
  const int64_t chunks = (panels + chunk - 1) / chunk;
  return {first, chunks * row_blocks, chunks, row_block, chunk};
}

// All products of a phase share one loop.
void Decoder::multiply(const Product* products, size_t count, Acts& acts) {
  cuts_.clear();
  int64_t items = 0;
  for (const Product* product = products; product < products + count; ++product) {
    cuts_.push_back(cut(*product->linear->weight, product->rows, items));
    items += cuts_.back().items;
  }
  pool_.run(items, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto after = std::upper_bound(cuts_.begin(), cuts_.end(), i,
                                          [](int64_t at, const Cut& c) { return at < c.first; });
      const Cut& cut = *(after - 1);
      const Product& product = products[&cut - cuts_.data()];
      const PackedMatrix& w = *product.linear->weight;
      const int64_t m0 = (i - cut.first) / cut.chunks * cut.row_block;
      const int64_t p0 = (i - cut.first) % cut.chunks * cut.panel_chunk;
      const int act = static_cast<int>(w.act);
      kernels_.gemm(w, acts.row(act, product.first_row + m0), acts.stride[act],
                    std::min(cut.row_block, product.rows - m0), p0,
                    std::min(p0 + cut.panel_chunk, panels_of(w)), product.linear->bias,
                    product.out + m0 * product.ldo, product.ldo);
    }
  });
}

void Decoder::expect(std::initializer_list<const Linear*> linears) {
  Ahead& ahead = pool_.ahead();
  ahead.clear();
  int64_t items = 0;
  int thread = 0;
  for (const Linear* linear : linears) {
    if (!*linear) continue;
    const PackedMatrix& w = *linear->weight;
    const Cut c = cut(w, tokens_, items);
    items += c.items;
    for (; thread < std::min<int64_t>(pool_.threads(), items); ++thread) {
      const int64_t p0 = (thread - c.first) % c.chunks * c.panel_chunk;
      ahead.add(thread, w.data + p0 * w.panel_bytes,
                std::min(c.panel_chunk, panels_of(w) - p0) * w.panel_bytes);
    }
  }
}

void Decoder::expect_layer(size_t l) {
  if (l >= model_.layers.size()) return expect({&model_.lm_head});
  const DecoderLayer& layer = model_.layers[l];
  if (layer.latent) return expect({&layer.latent->kv_down, &layer.latent->q_down});
  if (layer.attends) return expect({&layer.q, &layer.k, &layer.v});
  layer.recurrent ? pool_.ahead().clear() : expect_feed(layer);
}

void Decoder::expect_feed(const DecoderLayer& layer) {
  if (!layer.feeds) return pool_.ahead().clear();
  if (layer.experts) return expect({&layer.experts->router});
  expect({&layer.mlp.gate, &layer.mlp.up});
}

}  // namespace tidemill
