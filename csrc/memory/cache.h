// The paged KV cache: per cache group a number of blocks, per layer an array of them; and the states of
// recurrent layers.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "memory/states.h"
#include "runtime/prefault.h"
#include "runtime/threadpool.h"

namespace tidemill {

struct CacheGroupShape {
  int64_t window = 0;  // 0: full attention
  std::vector<int> layers;
};

struct CacheLayerShape {
  int32_t kv_heads, head_dim, v_dim;
};

// Size of one token's K and V in the portable form of a layer's blocks.
struct PortableSizes {
  int64_t k_bytes, v_bytes;
  int64_t k_scales, v_scales;  // floats
};
PortableSizes portable_sizes(const KvLayer& kv);

class KvCache {
 public:
  KvCache(const KernelTable& kernels, KvType type, int block_size,
          std::vector<CacheGroupShape> groups, std::vector<CacheLayerShape> layers,
          int64_t state_floats);

  // Replaces the cache with an empty one: num_blocks[g] blocks for group g, and `states` recurrent
  // states if the model has any. Error (Resource).
  void allocate(const std::vector<int64_t>& num_blocks, int64_t states);
  // Frees the memory; the next allocation uses elements of this type.
  void retype(KvType type);
  // Frees the memory; the cache has no blocks afterwards.
  void free();

  int64_t groups() const { return static_cast<int64_t>(groups_.size()); }
  const CacheGroupShape& group(int64_t g) const { return groups_[static_cast<size_t>(g)]; }
  int64_t num_blocks(int64_t g) const { return num_blocks_[static_cast<size_t>(g)]; }
  int64_t bytes() const { return bytes_ + states_.bytes(); }
  StatePool& states() { return states_; }
  const StatePool& states() const { return states_; }
  int64_t block_bytes(int64_t g) const;  // summed over the group's layers
  int block_size() const { return block_size_; }
  KvType type() const { return type_; }
  const KvLayer& layer(int l) const { return kv_[static_cast<size_t>(l)]; }

  // Returns the pages of blocks that hold nothing to the system, as far as whole huge pages are theirs;
  // beyond the limit, small pages as well. In ascending order; no step may be outstanding.
  void give_back(int64_t g, const int32_t* blocks, int64_t count);

  // Blocks from this one on are not handed out until the limit is raised: no pages are taken for them
  // ahead of their use. No step may be outstanding.
  void limit(int64_t g, int64_t blocks);

  // Copies blocks pairs[2 i] -> pairs[2 i + 1], in order.
  void copy(int64_t g, const int32_t* pairs, int64_t count);
  // Portable form of `count` blocks of one layer: K [count, block_size, kv_heads, head_dim] and V
  // [count, block_size, kv_heads, v_dim] in the cache's type (bfloat16 as its bits, int4 one byte per
  // value), with scales [count, block_size, kv_heads, scales per head].
  void export_layer(int layer, const int32_t* blocks, int64_t count, void* keys, void* values,
                    float* key_scales, float* value_scales, ThreadPool& pool) const;
  void import_layer(int layer, const int32_t* blocks, int64_t count, const void* keys,
                    const void* values, const float* key_scales, const float* value_scales,
                    ThreadPool& pool);
  // Blocks as they lie in memory, layer after layer: block_bytes(g) bytes each, one after the other. What
  // they mean depends on the instruction set and the build. Steps may run that touch none of them.
  void read_blocks(int64_t g, const int32_t* blocks, int64_t count, uint8_t* out) const;
  void write_blocks(int64_t g, const int32_t* blocks, int64_t count, const uint8_t* data);
  // A step is about to use blocks of group g up to this one.
  void reached(int64_t g, int64_t block) const {
    if (prefault_) prefault_->reached(g, block);
  }
  // Error (Internal) unless every id is a block of group g.
  void check_blocks(int64_t g, const int32_t* blocks, int64_t count) const;

 private:
  const KernelTable& kernels_;
  KvType type_;
  int block_size_;
  std::vector<CacheGroupShape> groups_;
  std::vector<CacheLayerShape> layer_shapes_;
  std::vector<int64_t> num_blocks_;
  std::vector<KvLayer> kv_;
  Region region_;
  std::unique_ptr<Prefault> prefault_;  // destroyed before the region
  int64_t bytes_ = 0;
  StatePool states_;
};

}  // namespace tidemill
