#include "model/step_kv.h"

#include <algorithm>

namespace tidemill {

namespace {

// Extra entries after a row's last block, because kernels look ahead in the table when they prefetch.
constexpr int64_t kTablePadding = 32;

bool same_shape(const AttnShape& a, const AttnShape& b) {
  return a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.v_dim == b.v_dim && a.scale == b.scale && a.window == b.window &&
         a.softcap == b.softcap && a.slopes == b.slopes && a.chunked == b.chunked &&
         a.causal == b.causal;
}

// Bytes of K and V prefetched during products: a share of L3 small enough to survive until they are
// read.
int64_t kv_prefetch_bytes() {
  static const int64_t bytes = cache_bytes(3) / 5 * 3;
  return bytes;
}

}  // namespace

StepKv::StepKv(StepContext& context) : context_(context) {
  for (const DecoderLayer& layer : context.model.layers) {
    layer_geometry_.push_back(layer.has_attention ? geometry_of(layer) : -1);
  }
}

int StepKv::geometry_of(const DecoderLayer& layer) {
  const auto known = std::find_if(geometries_.begin(), geometries_.end(), [&](const Geometry& g) {
    return same_shape(g.shape, layer.attention) && g.cache_group == layer.cache_group;
  });
  if (known != geometries_.end()) return static_cast<int>(known - geometries_.begin());
  geometries_.push_back({layer.attention, layer.cache_group,
                         std::make_unique<Attend>(context_.kernels, context_.pool)});
  return static_cast<int>(geometries_.size()) - 1;
}

void StepKv::begin() {
  fill_tables();
  fill_writes();
}

// Block tables with -1 replaced and padding at the end: kernels mask what a query may not see, and
// every entry they can touch names a real block.
void StepKv::fill_tables() {
  const StepInput& step = *context_.step;
  tables_.resize(static_cast<size_t>(context_.cache->groups()));
  for (size_t g = 0; g < tables_.size(); ++g) {
    const Int32Table& table = step.block_tables[g];
    const int64_t stride = table.columns + kTablePadding;
    tables_[g].stride = stride;
    tables_[g].blocks.assign(static_cast<size_t>(step.rows() * stride), 0);
    int32_t highest = 0;
    for (int64_t r = 0; r < step.rows(); ++r) {
      for (int64_t b = 0; b < table.columns; ++b) {
        const int32_t block = std::max(0, table.values[static_cast<size_t>(r * table.columns + b)]);
        tables_[g].blocks[static_cast<size_t>(r * stride + b)] = block;
        highest = std::max(highest, block);
      }
    }
    context_.cache->reached(static_cast<int64_t>(g), highest);
  }
}

void StepKv::fill_writes() {
  const StepInput& step = *context_.step;
  const int64_t block_size = context_.cache->block_size();
  writes_.clear();
  for (int64_t r = 0; r < step.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    const int64_t begin = step.row_start[i], end = step.row_start[i + 1];
    for (int64_t t = begin; t < end;) {
      const int64_t position = step.context_len[i] + t - begin;
      const int64_t count = std::min(end - t, block_size - position % block_size);
      writes_.push_back({t, count, r, position});
      t += count;
    }
  }
}

void StepKv::compute_rows(int64_t rows) {
  const StepInput& step = *context_.step;
  write_count_ = std::partition_point(writes_.begin(), writes_.end(),
                                      [&](const WriteItem& item) { return item.row < rows; }) -
                 writes_.begin();
  for (Table& table : tables_) {
    table.rows.clear();
    for (int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<size_t>(r);
      table.rows.push_back({step.row_start[i], step.row_start[i + 1] - step.row_start[i],
                            step.context_len[i], table.row(r)});
    }
  }
  // They point into plans that are made anew here.
  for (KvPrefetch& of : context_.products.kv_prefetch()) of = KvPrefetch{};
  if (rows == 0) return;
  for (Geometry& g : geometries_) {
    g.plan->plan(g.shape, tables_[static_cast<size_t>(g.cache_group)].rows);
  }
}

StepKv::Layer StepKv::layer(size_t l) const {
  const DecoderLayer& layer = context_.model.layers[l];
  return {&context_.cache->layer(layer.kv_layer < 0 ? static_cast<int>(l) : layer.kv_layer),
          geometries_[static_cast<size_t>(layer_geometry_[l])].plan.get()};
}

void StepKv::prefetch_after(size_t l) {
  std::vector<KvPrefetch>& prefetch = context_.products.kv_prefetch();
  for (KvPrefetch& of : prefetch) of = KvPrefetch{};
  const std::vector<DecoderLayer>& layers = context_.model.layers;
  while (++l < layers.size() && !layers[l].has_attention) {}
  if (l >= layers.size()) return;
  const auto [kv, plan] = layer(l);
  for (size_t thread = 0; thread < prefetch.size(); ++thread) {
    const std::vector<ByteRange>& ranges = plan->prefetch_ranges(
        *kv, static_cast<int>(thread), kv_prefetch_bytes() / context_.pool.threads());
    prefetch[thread] = {kv->base, ranges.data(), ranges.data() + ranges.size()};
  }
}

}  // namespace tidemill
