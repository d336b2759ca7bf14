// Attention of a ragged batch over the paged cache: splits a step into work items.
//
// A query's result is the merge of its spans in ascending order, however the step is split (kernels.h):
// the plan decides which thread computes what, never the result.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "memory/cache.h"
#include "memory/memory.h"
#include "runtime/threadpool.h"

namespace tidemill {

// The queries of one row.
struct AttendRow {
  int64_t first_token;  // index of the row's first query in the step
  int64_t count;        // queries
  int64_t pos0;         // absolute position of the first
  const int32_t* block_table;
};

// Plans and runs attention for all layers that share a geometry. Buffers are kept between steps.
class Attend {
 public:
  Attend(const KernelTable& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // Splits the step into items. `rows` must outlive the calls of run.
  void plan(const AttnShape& shape, const std::vector<AttendRow>& rows);
  // Sets what waiting threads prefetch: the K and V at the beginning of their shares.
  void prefetch_keys(const KvLayer& kv) const;
  // The K and V that each thread will read, in order of use, limited to rows with few queries and to
  // `bytes`. The same for all layers. Valid until the next plan.
  const std::vector<ByteRange>& prefetch_ranges(const KvLayer& kv, int thread, int64_t bytes);
  // q: [tokens, q_stride], of which the first heads * head_dim of each row are used; out: [tokens,
  // out_stride], likewise heads * v_dim. sinks: per head the score of a sink key (a key without a
  // value), or null.
  void run(const KvLayer& kv, const float* q, int64_t q_stride, const float* sinks, float* out,
           int64_t out_stride);

 private:
  // Queries of one row and one KV head, with the spans [span0, span1) that any of them sees.
  struct Tile {
    int32_t row, kv_head;
    int64_t q0, count;
    int64_t span0, span1;
    int64_t partial;  // index of the first span's partial state, if spans are distributed over threads
  };
  struct State {  // running maximum, sum and accumulator per query-head
    float *m, *l, *acc;
  };
  struct SpanItem {
    int64_t tile, span;
  };

  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  int64_t state_floats() const { return tile_queries_ * group() * (2 + shape_.v_dim); }
  State state_at(float* base) const;
  State partial_of(const Tile& tile, int64_t span) const;  // if spans are distributed
  void add_row_tiles(int64_t row, const AttendRow& r);
  void visible(const Tile& tile, int64_t span, int64_t* begin, int64_t* end) const;
  AttnShape shape_of(const AttendRow& row) const;  // with seen_to set, if not causal
  void plan_spans();
  void find_prefetch_ranges(const KvLayer& kv, int thread, int64_t bytes);
  // Number of items of the loop: tiles, or spans if those are distributed.
  int64_t items() const;
  // Item number `at`: its tile, and its first span.
  std::pair<const Tile*, int64_t> item(int64_t at) const;
  AttnNext keys_from(const Tile& tile, int64_t span) const;
  void compute_span(const KvLayer& kv, const float* q, int64_t q_stride, const Tile& tile,
                    int64_t begin, int64_t end, int64_t span, const AttnNext& next,
                    const State& into, uint8_t* scratch) const;
  // Tells the profile what the step's attention reads and computes.
  void tell(Profile& profile, const KvLayer& kv);
  void merge(int64_t begin, int64_t end, const State& running, const State& span) const;
  void clear(const Tile& tile, const State& state) const;
  void finish(const Tile& tile, const State& state, float* out, int64_t out_stride) const;
  void run_whole(const KvLayer& kv, const float* q, int64_t q_stride, float* out,
                 int64_t out_stride);
  void run_spread(const KvLayer& kv, const float* q, int64_t q_stride, float* out,
                  int64_t out_stride);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  AttnShape shape_{};
  const float* sinks_ = nullptr;
  const std::vector<AttendRow>* rows_ = nullptr;
  int64_t tile_queries_ = 1;
  bool spread_ = false;
  int64_t told_positions_ = -1, told_pairs_ = 0;  // read; and seen by queries. -1: not counted yet
  std::vector<std::vector<ByteRange>> prefetch_ranges_;  // per thread; empty: not computed yet
  std::vector<Tile> tiles_;
  std::vector<SpanItem> span_items_;  // in processing order
  Buffer<float> states_;     // two states per thread
  Buffer<float> partials_;   // one state per span item, when spread
  Buffer<uint8_t> scratch_;  // the kernel's, per thread
  int64_t scratch_bytes_ = 0;
};

}  // namespace tidemill
