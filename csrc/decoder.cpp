#include "decoder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "error.h"

namespace tidemill {

namespace {

// Rows of activations a product works on at a time, so that they stay in the L2 cache while the
// panels pass.
constexpr int64_t kActBlockBytes = 1 << 20;
// A chunk of panels read by one thread: long enough for a sequential stream, and several panels,
// since a product prefetches the next one.
constexpr int64_t kPanelChunkBytes = 192 << 10;
constexpr int64_t kPanelChunk = 4;
// Entries past a row's last block, so that a kernel may look ahead in the table.
constexpr int64_t kTablePadding = 32;

unsigned act_bit(const Linear& linear) { return 1u << static_cast<int>(linear.weight->act); }

int64_t panels_of(const PackedMatrix& w) { return (w.n + kPanel - 1) / kPanel; }

bool same_shape(const AttnShape& a, const AttnShape& b) {
  return a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.scale == b.scale && a.window == b.window;
}

}  // namespace

Decoder::Decoder(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model,
                 std::function<bool()> cancelled)
    : kernels_(kernels), pool_(pool), model_(model), cancelled_(std::move(cancelled)) {
  act_k_ = model.hidden;
  for (const DecoderLayer& layer : model.layers) {
    const AttnShape& a = layer.attention;
    const int64_t q = int64_t{a.heads} * a.head_dim, kv = int64_t{a.kv_heads} * a.head_dim;
    qkv_width_ = std::max(qkv_width_, round_up(q + 2 * kv, 16));
    heads_width_ = std::max(heads_width_, round_up(q, 16));
    mlp_width_ = std::max(mlp_width_, round_up(2 * layer.gate.weight->n, 32));
    act_k_ = std::max({act_k_, q, layer.gate.weight->n});
    size_t p = 0;
    while (p < plans_.size() && !(same_shape(plans_[p].shape, a) &&
                                  plans_[p].cache_group == layer.cache_group)) {
      ++p;
    }
    if (p == plans_.size()) {
      plans_.push_back({a, layer.cache_group});
      attends_.push_back(std::make_unique<Attend>(kernels, pool));
    }
    layer_plan_.push_back(static_cast<int>(p));
  }
  scratch_width_ = round_up(act_k_, 16);
  for (int act = 0; act < 3; ++act) {
    act_stride_[act] = kernels.act_row_bytes(static_cast<ActType>(act), act_k_);
  }
  scratch_.ensure(scratch_width_ * pool.threads());
}

void Decoder::check_cancelled() const {
  if (cancelled_()) throw Error(ErrorKind::Unavailable, "the backend was closed during the step");
}

template <class Body>
void Decoder::each_token(int64_t count, Body&& body) {
  // A token's share of an elementwise phase is about as long as waking another thread.
  const int64_t threads = pool_.threads();
  const int64_t grain = count <= 2 ? count : std::max<int64_t>(1, count / (4 * threads));
  pool_.run(count, grain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t t = begin; t < end; ++t) body(t, thread);
  });
}

void Decoder::size_buffers(int64_t tokens) {
  x_.ensure(tokens * model_.hidden);
  delta_.ensure(tokens * round_up(model_.hidden, 16));
  qkv_.ensure(tokens * qkv_width_);
  heads_.ensure(tokens * heads_width_);
  mlp_.ensure(tokens * mlp_width_);
  unsigned used = act_bit(model_.lm_head);
  for (const DecoderLayer& layer : model_.layers) {
    for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up,
                                 &layer.down}) {
      used |= act_bit(*linear);
    }
  }
  for (int act = 0; act < 3; ++act) {
    if (used >> act & 1u) acts_[act].ensure(tokens * act_stride_[act]);
  }
}

// Block tables with -1 replaced and room to look ahead: a kernel masks what a query may not see,
// and every entry it can touch names a real block.
void Decoder::prepare_tables(const StepInput& step, const KvCache& cache) {
  const auto groups = static_cast<size_t>(cache.groups());
  tables_.resize(groups);
  table_stride_.resize(groups);
  attend_rows_.resize(groups);
  for (size_t g = 0; g < groups; ++g) {
    const Int32Table& table = step.block_tables[g];
    const int64_t stride = table.columns + kTablePadding;
    table_stride_[g] = stride;
    tables_[g].assign(static_cast<size_t>(step.rows() * stride), 0);
    for (int64_t r = 0; r < step.rows(); ++r) {
      for (int64_t b = 0; b < table.columns; ++b) {
        tables_[g][static_cast<size_t>(r * stride + b)] =
            std::max(0, table.values[static_cast<size_t>(r * table.columns + b)]);
      }
    }
    attend_rows_[g].clear();
    for (int64_t r = 0; r < step.rows(); ++r) {
      const auto i = static_cast<size_t>(r);
      attend_rows_[g].push_back({step.row_start[i], step.row_start[i + 1] - step.row_start[i],
                                 step.context_len[i], tables_[g].data() + r * stride});
    }
  }
}

void Decoder::prepare(const StepInput& step, const KvCache& cache) {
  tokens_ = step.tokens();
  size_buffers(tokens_);
  prepare_tables(step, cache);
  positions_.resize(static_cast<size_t>(tokens_));
  writes_.clear();
  int64_t last = 0;
  for (int64_t r = 0; r < step.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    const int64_t begin = step.row_start[i], end = step.row_start[i + 1];
    for (int64_t t = begin; t < end;) {
      const int64_t position = step.context_len[i] + t - begin;
      const int64_t count = std::min(end - t, cache.block_size() - position % cache.block_size());
      for (int64_t j = 0; j < count; ++j) positions_[static_cast<size_t>(t + j)] = position + j;
      writes_.push_back({t, count, r, position});
      last = std::max(last, position + count);
      t += count;
    }
  }
  for (RopeTable& rope : model_.ropes) rope.grow(last, pool_);
  for (size_t p = 0; p < plans_.size(); ++p) {
    attends_[p]->plan(plans_[p].shape, attend_rows_[static_cast<size_t>(plans_[p].cache_group)]);
  }
}

void Decoder::forward(const StepInput& step, const std::vector<int32_t>& token_ids,
                      KvCache& cache) {
  prepare(step, cache);
  if (tokens_ == 0) return;
  embed(token_ids);
  const float* delta = nullptr;
  for (size_t l = 0; l < model_.layers.size(); ++l) {
    check_cancelled();
    const DecoderLayer& layer = model_.layers[l];
    add_norm_pack(delta, layer.attn_norm, {&layer.q, &layer.k, &layer.v});
    const KvLayer& kv = cache.layer(static_cast<int>(l));
    project_qkv(layer, kv);
    attends_[static_cast<size_t>(layer_plan_[l])]->run(kv, qkv_.data(), qkv_width_, heads_.data(),
                                                       heads_width_);
    pack_rows(heads_.data(), heads_width_, layer.o);
    multiply({{&layer.o, delta_.data(), round_up(model_.hidden, 16)}}, tokens_);
    add_norm_pack(delta_.data(), layer.mlp_norm, {&layer.gate, &layer.up});
    const int64_t width = layer.gate.weight->n;
    float* const up = mlp_.data() + mlp_width_ / 2;
    multiply({{&layer.gate, mlp_.data(), mlp_width_}, {&layer.up, up, mlp_width_}}, tokens_);
    each_token(tokens_, [&](int64_t t, int thread) {
      float* out = scratch_.data() + thread * scratch_width_;
      kernels_.silu_mul(mlp_.data() + t * mlp_width_, up + t * mlp_width_, width, out);
      pack_row(act_bit(layer.down), out, width, t);
    });
    multiply({{&layer.down, delta_.data(), round_up(model_.hidden, 16)}}, tokens_);
    delta = delta_.data();
  }
  each_token(tokens_, [&](int64_t t, int) {
    kernels_.add(x_.data() + t * model_.hidden, delta + t * round_up(model_.hidden, 16),
                 model_.hidden);
  });
}

void Decoder::embed(const std::vector<int32_t>& token_ids) {
  const Embedding& e = model_.embedding;
  each_token(tokens_, [&](int64_t t, int) {
    const int64_t id = token_ids[static_cast<size_t>(t)];
    float* out = x_.data() + t * model_.hidden;
    if (e.packed != nullptr) {
      kernels_.unpack_row(*e.packed, id, out);
    } else {
      kernels_.to_float(e.type, e.source + id * e.row_bytes, model_.hidden, out);
    }
  });
}

void Decoder::project_qkv(const DecoderLayer& layer, const KvLayer& kv) {
  const AttnShape& a = layer.attention;
  const int64_t q = int64_t{a.heads} * a.head_dim, k = int64_t{a.kv_heads} * a.head_dim;
  multiply({{&layer.q, qkv_.data(), qkv_width_},
            {&layer.k, qkv_.data() + q, qkv_width_},
            {&layer.v, qkv_.data() + q + k, qkv_width_}},
           tokens_);
  write_kv(layer, kv);
}

// Q and K get their norms and rope, K and V go to the cache. One item is one block of one row, so
// that no two threads write the same block, whatever its layout.
void Decoder::write_kv(const DecoderLayer& layer, const KvLayer& kv) {
  const AttnShape& a = layer.attention;
  const int64_t q_width = int64_t{a.heads} * a.head_dim, k_width = int64_t{a.kv_heads} * a.head_dim;
  const auto g = static_cast<size_t>(layer.cache_group);
  const auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t w = begin; w < end; ++w) {
      const WriteItem& item = writes_[static_cast<size_t>(w)];
      const int64_t column = item.position / kv.block_size;
      const int64_t block = tables_[g][static_cast<size_t>(item.row * table_stride_[g] + column)];
      for (int64_t i = 0; i < item.count; ++i) {
        float* q = qkv_.data() + (item.token + i) * qkv_width_;
        float* k = q + q_width;
        if (layer.q_norm != nullptr) {
          for (int64_t h = 0; h < a.heads; ++h) {
            float* head = q + h * a.head_dim;
            kernels_.rms_norm(head, layer.q_norm, model_.norm_eps, a.head_dim, head);
          }
          for (int64_t h = 0; h < a.kv_heads; ++h) {
            float* head = k + h * a.head_dim;
            kernels_.rms_norm(head, layer.k_norm, model_.norm_eps, a.head_dim, head);
          }
        }
        if (layer.rope >= 0) {
          const RopeTable& rope = model_.ropes[static_cast<size_t>(layer.rope)];
          const float* cos_sin = rope.at(item.position + i);
          kernels_.rope(q, a.heads, a.head_dim, rope.dim(), cos_sin);
          kernels_.rope(k, a.kv_heads, a.head_dim, rope.dim(), cos_sin);
        }
        kernels_.kv_write(kv, block, item.position % kv.block_size + i, k, k + k_width);
      }
    }
  };
  const auto items = static_cast<int64_t>(writes_.size());
  const int64_t grain = tokens_ <= 2 ? items : std::max<int64_t>(1, items / (4 * pool_.threads()));
  pool_.run(items, grain, body);
}

void Decoder::add_norm_pack(const float* delta, const float* norm,
                            std::initializer_list<const Linear*> to) {
  unsigned acts = 0;
  for (const Linear* linear : to) acts |= act_bit(*linear);
  const int64_t hidden = model_.hidden, stride = round_up(hidden, 16);
  each_token(tokens_, [&](int64_t t, int thread) {
    float* x = x_.data() + t * hidden;
    float* normed = scratch_.data() + thread * scratch_width_;
    if (delta != nullptr) kernels_.add(x, delta + t * stride, hidden);
    kernels_.rms_norm(x, norm, model_.norm_eps, hidden, normed);
    pack_row(acts, normed, hidden, t);
  });
}

void Decoder::pack_rows(const float* rows, int64_t stride, const Linear& to) {
  const unsigned acts = act_bit(to);
  each_token(tokens_, [&](int64_t t, int) { pack_row(acts, rows + t * stride, to.weight->k, t); });
}

void Decoder::pack_row(unsigned acts, const float* row, int64_t k, int64_t index) {
  for (int act = 0; act < 3; ++act) {
    if (acts >> act & 1u) {
      kernels_.pack_act(static_cast<ActType>(act), row, k,
                        acts_[act].data() + index * act_stride_[act]);
    }
  }
}

// All products of a phase share one loop. An item is a block of activation rows times a chunk of
// panels; cutting changes no result, since a row's sums depend on nothing but the row.
void Decoder::multiply(std::initializer_list<Product> products, int64_t rows) {
  struct Cut {
    const Product* product;
    int64_t first, chunks, row_block, panel_chunk;
  };
  Cut cuts[4];
  size_t used = 0;
  int64_t items = 0;
  for (const Product& product : products) {
    const PackedMatrix& w = *product.linear->weight;
    const int64_t act_bytes = kernels_.act_row_bytes(w.act, w.k);
    const int64_t row_block = std::max<int64_t>(16, kActBlockBytes / act_bytes / 16 * 16);
    const int64_t panels = panels_of(w);
    const int64_t row_blocks = (rows + row_block - 1) / row_block;
    // At least four items a thread, so that threads end together; else a long sequential stream.
    const int64_t fair = std::max<int64_t>(1, panels * row_blocks / (4 * pool_.threads()));
    const int64_t chunk =
        std::min(fair, std::max<int64_t>(kPanelChunk, kPanelChunkBytes / w.panel_bytes));
    const int64_t chunks = (panels + chunk - 1) / chunk;
    cuts[used++] = {&product, items, chunks, row_block, chunk};
    items += chunks * row_blocks;
  }
  pool_.run(items, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      size_t c = used - 1;
      while (cuts[c].first > i) --c;
      const Cut& cut = cuts[c];
      const PackedMatrix& w = *cut.product->linear->weight;
      const int64_t m0 = (i - cut.first) / cut.chunks * cut.row_block;
      const int64_t p0 = (i - cut.first) % cut.chunks * cut.panel_chunk;
      const int64_t stride = act_stride_[static_cast<int>(w.act)];
      kernels_.gemm(w, acts_[static_cast<int>(w.act)].data() + m0 * stride, stride,
                    std::min(cut.row_block, rows - m0), p0,
                    std::min(p0 + cut.panel_chunk, panels_of(w)), cut.product->linear->bias,
                    cut.product->out + m0 * cut.product->ldo, cut.product->ldo);
    }
  });
}

void Decoder::logits(const int64_t* tokens, int64_t count, float* out) {
  check_cancelled();
  const unsigned acts = act_bit(model_.lm_head);
  each_token(count, [&](int64_t i, int thread) {
    float* normed = scratch_.data() + thread * scratch_width_;
    kernels_.rms_norm(x_.data() + tokens[i] * model_.hidden, model_.final_norm, model_.norm_eps,
                      model_.hidden, normed);
    pack_row(acts, normed, model_.hidden, i);
  });
  multiply({{&model_.lm_head, out, model_.vocab}}, count);
}

}  // namespace tidemill
