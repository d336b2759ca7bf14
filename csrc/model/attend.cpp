#include "model/attend.h"

#include <algorithm>
#include <limits>

namespace tidemill {

namespace {
// Query-heads per tile: enough to reuse each K and V tile often, few enough to stay in the cache.
constexpr int64_t kTileHeads = 128;
constexpr int64_t kMaxTileQueries = 64;
// Lower bounds: queries per tile, and the same bound in query-heads where heads share a latent.
constexpr int64_t kMinTileQueries = 8, kMinTileHeads = 256;
// Up to about this many queries of a row, attention is bound by memory rather than compute.
constexpr int64_t kMaxPrefetchQueries = 4;
}  // namespace

void Attend::plan(const AttnShape& shape, const std::vector<AttendRow>& rows) {
  shape_ = shape;
  rows_ = &rows;
  tile_queries_ = 1;
  for (const AttendRow& row : rows) tile_queries_ = std::max(tile_queries_, row.count);
  const int64_t least =
      std::clamp<int64_t>(kMinTileHeads / group(), 1, kMinTileQueries);
  tile_queries_ = std::min(tile_queries_, std::clamp<int64_t>(kTileHeads / group(), least,
                                                              kMaxTileQueries));
  prefetch_ranges_.clear();
  told_positions_ = -1;
  tiles_.clear();
  for (size_t r = 0; r < rows.size(); ++r) add_row_tiles(static_cast<int64_t>(r), rows[r]);
  // Longest first, so that the last items are short and the threads finish together.
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
    return (a.span1 - a.span0) * a.count > (b.span1 - b.span0) * b.count;
  });

  const int64_t threads = pool_.threads();
  const bool long_tile = !tiles_.empty() && tiles_[0].span1 - tiles_[0].span0 > 1;
  spread_ = threads > 1 && long_tile && static_cast<int64_t>(tiles_.size()) < 4 * threads;
  if (spread_) plan_spans();
  states_.ensure(threads * 2 * state_floats());
  scratch_bytes_ = round_up(kernels_.attn_scratch_bytes(shape, tile_queries_),
                            static_cast<int64_t>(kAlign));
  scratch_.ensure(threads * std::max<int64_t>(scratch_bytes_, 1));
}

// Ordered by span, then by head, which is their order in memory: a thread's items are neighbours.
void Attend::plan_spans() {
  span_items_.clear();
  for (size_t t = 0; t < tiles_.size(); ++t) {
    tiles_[t].partial = static_cast<int64_t>(span_items_.size());
    for (int64_t s = tiles_[t].span0; s < tiles_[t].span1; ++s) {
      span_items_.push_back({static_cast<int64_t>(t), s});
    }
  }
  partials_.ensure(static_cast<int64_t>(span_items_.size()) * state_floats());
  std::stable_sort(span_items_.begin(), span_items_.end(),
                   [](const SpanItem& a, const SpanItem& b) { return a.span < b.span; });
}

void Attend::add_row_tiles(int64_t row, const AttendRow& r) {
  for (int64_t q0 = 0; q0 < r.count; q0 += tile_queries_) {
    const int64_t count = std::min(tile_queries_, r.count - q0);
    const int64_t first = r.pos0 + q0;
    const int64_t last = shape_of(r).end(first + count - 1) - 1;
    const int64_t oldest = shape_.oldest(first);
    for (int32_t h = 0; h < shape_.kv_heads; ++h) {
      tiles_.push_back({static_cast<int32_t>(row), h, q0, count, oldest / kSpan, last / kSpan + 1,
                        0});
    }
  }
}

AttnShape Attend::shape_of(const AttendRow& row) const {
  AttnShape shape = shape_;
  if (!shape.causal) shape.seen_to = row.pos0 + row.count;
  return shape;
}

Attend::State Attend::state_at(float* base) const {
  const int64_t heads = tile_queries_ * group();
  return {base, base + heads, base + 2 * heads};
}

Attend::State Attend::partial_of(const Tile& tile, int64_t span) const {
  return state_at(partials_.data() + (tile.partial + span - tile.span0) * state_floats());
}

// The tile's queries [begin, end) that see any position of the span. Queries that see none are skipped
// rather than merged with an empty state, so that even signs of zeros match decoding one query alone.
void Attend::visible(const Tile& tile, int64_t span, int64_t* begin, int64_t* end) const {
  const int64_t first = (*rows_)[static_cast<size_t>(tile.row)].pos0 + tile.q0;
  const int64_t span_first = span * kSpan, span_last = span_first + kSpan - 1;
  *begin = std::clamp<int64_t>(shape_.first_seer(span_first) - first, 0, tile.count);
  *end = tile.count;
  if (shape_.window > 0) {
    *end = std::clamp<int64_t>(shape_.last_seer(span_last) - first, 0, tile.count);
  }
}

// K and V that the tile reads from `span` on.
AttnNext Attend::keys_from(const Tile& tile, int64_t span) const {
  const AttendRow& row = (*rows_)[static_cast<size_t>(tile.row)];
  const int64_t first = row.pos0 + tile.q0;
  return {row.block_table, tile.kv_head, std::max(shape_.oldest(first), span * kSpan),
          shape_of(row).end(first + tile.count - 1)};
}

void Attend::compute_span(const KvLayer& kv, const float* q, int64_t q_stride, const Tile& tile,
                          int64_t begin, int64_t end, int64_t span, const AttnNext& next,
                          const State& into, uint8_t* scratch) const {
  const AttendRow& row = (*rows_)[static_cast<size_t>(tile.row)];
  const int64_t first = tile.q0 + begin;
  kernels_.attn_span(shape_of(row), kv, row.block_table, q + (row.first_token + first) * q_stride,
                     q_stride, end - begin, row.pos0 + first, tile.kv_head, span, next, into.m,
                     into.l, into.acc, scratch);
}

void Attend::merge(int64_t begin, int64_t end, const State& running, const State& span) const {
  const int64_t skip = begin * group();
  kernels_.attn_merge((end - begin) * group(), shape_.v_dim, running.m + skip,
                      running.l + skip, running.acc + skip * shape_.v_dim, span.m, span.l,
                      span.acc);
}

void Attend::clear(const Tile& tile, const State& state) const {
  const int64_t heads = tile.count * group();
  std::fill_n(state.acc, heads * shape_.v_dim, 0.0f);
  if (sinks_ != nullptr) {  // a sink is a key seen first, whose value is zero
    const float* sinks = sinks_ + tile.kv_head * group();
    for (int64_t h = 0; h < heads; ++h) state.m[h] = sinks[h % group()];
    std::fill_n(state.l, heads, 1.0f);
    return;
  }
  std::fill_n(state.m, heads, -std::numeric_limits<float>::infinity());
  std::fill_n(state.l, heads, 0.0f);
}

void Attend::finish(const Tile& tile, const State& state, float* out, int64_t out_stride) const {
  const AttendRow& row = (*rows_)[static_cast<size_t>(tile.row)];
  const int64_t dim = shape_.v_dim;
  for (int64_t i = 0; i < tile.count; ++i) {
    float* o = out + (row.first_token + tile.q0 + i) * out_stride + tile.kv_head * group() * dim;
    for (int64_t g = 0; g < group(); ++g) {
      const int64_t at = i * group() + g;
      kernels_.attn_finish(dim, state.l[at], state.acc + at * dim, o + g * dim);
    }
  }
}

int64_t Attend::items() const {
  return static_cast<int64_t>(spread_ ? span_items_.size() : tiles_.size());
}

std::pair<const Attend::Tile*, int64_t> Attend::item(int64_t at) const {
  const auto i = static_cast<size_t>(at);
  if (!spread_) return {&tiles_[i], tiles_[i].span0};
  return {&tiles_[static_cast<size_t>(span_items_[i].tile)], span_items_[i].span};
}

void Attend::prefetch_keys(const KvLayer& kv) const {
  IdlePrefetcher& prefetcher = pool_.idle_prefetcher();
  prefetcher.clear();
  const int64_t head_bytes =
      kernels_.kv_block_bytes(kv.type, kv.block_size, 1, kv.head_dim, kv.v_dim);
  for (int thread = 0; thread < pool_.threads(); ++thread) {
    bool room = true;
    const auto [first, end] = pool_.share(items(), thread);
    for (int64_t i = first; room && i < end; ++i) {
      const auto [tile, span] = item(i);
      const AttnNext keys = keys_from(*tile, span);
      for (int64_t block = keys.from / kv.block_size; room && block * kv.block_size < keys.to;
           ++block) {
        room = prefetcher.add(thread,
                         kv.base + keys.block_table[block] * kv.block_stride +
                             keys.kv_head * head_bytes,
                         head_bytes);
      }
    }
  }
}

const std::vector<ByteRange>& Attend::prefetch_ranges(const KvLayer& kv, int thread, int64_t bytes) {
  if (prefetch_ranges_.empty()) {
    prefetch_ranges_.resize(static_cast<size_t>(pool_.threads()));
    for (int t = 0; t < pool_.threads(); ++t) find_prefetch_ranges(kv, t, bytes);
  }
  return prefetch_ranges_[static_cast<size_t>(thread)];
}

void Attend::find_prefetch_ranges(const KvLayer& kv, int thread, int64_t bytes) {
  const int64_t head_bytes =
      kernels_.kv_block_bytes(kv.type, kv.block_size, 1, kv.head_dim, kv.v_dim);
  const auto [first, end] = pool_.share(items(), thread);
  for (int64_t i = first, after; i < end; i = after) {
    // Consecutive heads are adjacent within a block.
    const auto [tile, span] = item(i);
    for (after = i + 1; after < end; ++after) {
      const auto [other, from] = item(after);
      if (other->row != tile->row || other->q0 != tile->q0 || from != span ||
          other->kv_head != tile->kv_head + after - i) {
        break;
      }
    }
    if (tile->count > kMaxPrefetchQueries) continue;
    const AttnNext keys = keys_from(*tile, span);
    const int64_t to = spread_ ? std::min(keys.to, (span + 1) * kSpan) : keys.to;
    const int64_t heads = (after - i) * head_bytes;
    for (int64_t block = keys.from / kv.block_size; block * kv.block_size < to; ++block) {
      if ((bytes -= heads) < 0) return;
      const int64_t from = keys.block_table[block] * kv.block_stride + keys.kv_head * head_bytes;
      prefetch_ranges_[static_cast<size_t>(thread)].push_back({from, from + heads});
    }
  }
}

void Attend::run(const KvLayer& kv, const float* q, int64_t q_stride, const float* sinks,
                 float* out, int64_t out_stride) {
  sinks_ = sinks;
  if (Profile* const profile = pool_.profile(); profile != nullptr) tell(*profile, kv);
  if (spread_) {
    run_spread(kv, q, q_stride, out, out_stride);
  } else {
    run_whole(kv, q, q_stride, out, out_stride);
  }
}

void Attend::tell(Profile& profile, const KvLayer& kv) {
  bool few = true;
  for (const AttendRow& row : *rows_) few = few && row.count <= Profile::kFewRows;
  if (told_positions_ < 0) {
    told_positions_ = told_pairs_ = 0;
    for (const Tile& tile : tiles_) {
      const AttendRow& row = (*rows_)[static_cast<size_t>(tile.row)];
      const AttnNext keys = keys_from(tile, tile.span0);
      told_positions_ += keys.to - keys.from;
      for (int64_t i = 0; i < tile.count; ++i) {
        const int64_t position = row.pos0 + tile.q0 + i;
        told_pairs_ += shape_of(row).end(position) - shape_.oldest(position);
      }
    }
  }
  const int64_t block_bytes =
      kernels_.kv_block_bytes(kv.type, kv.block_size, 1, kv.head_dim, kv.v_dim);
  profile.next({Kernel::Attention, -1, -1, few, told_positions_ * block_bytes / kv.block_size,
                2 * told_pairs_ * group() * (shape_.head_dim + shape_.v_dim)});
}

void Attend::run_whole(const KvLayer& kv, const float* q, int64_t q_stride, float* out,
                       int64_t out_stride) {
  pool_.run_tapered(items(), 1, [&](int64_t t0, int64_t t1, int thread) {
    float* base = states_.data() + thread * 2 * state_floats();
    const State running = state_at(base), span = state_at(base + state_floats());
    uint8_t* scratch = scratch_.data() + thread * scratch_bytes_;
    for (int64_t t = t0; t < t1; ++t) {
      const Tile& tile = tiles_[static_cast<size_t>(t)];
      clear(tile, running);
      for (int64_t s = tile.span0; s < tile.span1; ++s) {
        int64_t begin, end;
        visible(tile, s, &begin, &end);
        if (begin >= end) continue;
        AttnNext next;
        if (s + 1 < tile.span1) {
          next = keys_from(tile, s + 1);
        } else if (t + 1 < t1) {
          const Tile& after = tiles_[static_cast<size_t>(t + 1)];
          next = keys_from(after, after.span0);
        }
        compute_span(kv, q, q_stride, tile, begin, end, s, next, span, scratch);
        merge(begin, end, running, span);
      }
      finish(tile, running, out, out_stride);
    }
  });
}

void Attend::run_spread(const KvLayer& kv, const float* q, int64_t q_stride, float* out,
                        int64_t out_stride) {
  pool_.run_tapered(items(), 1, [&](int64_t i0, int64_t i1, int thread) {
    for (int64_t i = i0; i < i1; ++i) {
      const SpanItem& item = span_items_[static_cast<size_t>(i)];
      const Tile& tile = tiles_[static_cast<size_t>(item.tile)];
      int64_t begin, end;
      visible(tile, item.span, &begin, &end);
      if (begin >= end) continue;
      AttnNext next;
      if (i + 1 < i1) {
        const SpanItem& after = span_items_[static_cast<size_t>(i + 1)];
        next = keys_from(tiles_[static_cast<size_t>(after.tile)], after.span);
      }
      compute_span(kv, q, q_stride, tile, begin, end, item.span, next,
                   partial_of(tile, item.span),
                   scratch_.data() + thread * scratch_bytes_);
    }
  });
  if (Profile* const profile = pool_.profile(); profile != nullptr) {
    profile->next({Kernel::Attention, -1, -1, tile_queries_ <= Profile::kFewRows});
  }
  pool_.run(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t t0, int64_t t1, int thread) {
    const State running = state_at(states_.data() + thread * 2 * state_floats());
    for (int64_t t = t0; t < t1; ++t) {
      const Tile& tile = tiles_[static_cast<size_t>(t)];
      clear(tile, running);
      for (int64_t s = tile.span0; s < tile.span1; ++s) {
        int64_t begin, end;
        visible(tile, s, &begin, &end);
        if (begin >= end) continue;
        merge(begin, end, running, partial_of(tile, s));
      }
      finish(tile, running, out, out_stride);
    }
  });
}

}  // namespace tidemill
