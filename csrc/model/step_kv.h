// Where a step reads and writes K and V: block tables, writes, and the plans of attention.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "model/attend.h"
#include "model/step_context.h"

namespace tidemill {

class StepKv {
 public:
  explicit StepKv(StepContext& context);

  // Before a step, after the context's `begin`.
  void begin();
  // The layers that follow compute the first `rows` rows only.
  void compute_rows(int64_t rows);

  // K and V that layer l reads, and the attention plan for them.
  struct Layer {
    const KvLayer* kv;
    Attend* plan;
  };
  Layer layer(size_t l) const;

  // One token's write into the cache; `share` is the index of a part of its heads.
  struct Write {
    int64_t token, position, block, share;
  };
  // Calls body for every token and share. No two threads handle the same (block, share), so body may
  // write there whatever the block's layout.
  template <class Body>
  void for_each_write(const DecoderLayer& layer, const KvLayer& kv, int64_t shares, Body&& body) {
    const Table& table = tables_[static_cast<size_t>(layer.cache_group)];
    context_.pool.run_tapered(write_count_ * shares, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const WriteItem& item = writes_[static_cast<size_t>(i / shares)];
        const int64_t block = table.row(item.row)[item.position / kv.block_size];
        for (int64_t j = 0; j < item.count; ++j) {
          body(Write{item.token + j, item.position + j, block, i % shares});
        }
      }
    });
  }
  // The products that follow prefetch what the attention after layer l reads.
  void prefetch_after(size_t l);

 private:
  // Consecutive tokens of one row that share a cache block.
  struct WriteItem {
    int64_t token, count;
    int64_t row, position;
  };
  struct Geometry {
    AttnShape shape;
    int cache_group;
    std::unique_ptr<Attend> plan;
  };
  // A cache group's padded block tables.
  struct Table {
    int64_t stride = 0;
    std::vector<int32_t> blocks;
    std::vector<AttendRow> rows;
    const int32_t* row(int64_t r) const { return blocks.data() + r * stride; }
  };

  int geometry_of(const DecoderLayer& layer);
  void fill_tables();
  void fill_writes();

  StepContext& context_;
  std::vector<Geometry> geometries_;
  std::vector<int> layer_geometry_;  // per layer; -1: no attention
  std::vector<Table> tables_;        // per cache group
  std::vector<WriteItem> writes_;
  int64_t write_count_ = 0;  // of writes_, in the current layer
};

}  // namespace tidemill
