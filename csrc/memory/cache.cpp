#include "memory/cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace tidemill {

namespace {

// Smaller caches are not prefaulted: the steps touch their pages soon enough.
constexpr int64_t kPrefaultFrom = int64_t{64} << 20;

}  // namespace

PortableSizes portable_sizes(const KvLayer& kv) {
  const int64_t heads = kv.kv_heads;
  const int64_t element = kv.type == KvType::F32 ? 4 : kv.type == KvType::BF16 ? 2 : 1;
  int64_t k_scales = kv.type == KvType::I8, v_scales = k_scales;  // per head
  if (kv.type == KvType::I4) {  // a scale and a minimum each
    k_scales = 2 * ((kv.head_dim + kKvGroup - 1) / kKvGroup);
    v_scales = 2;
  }
  return {heads * kv.head_dim * element, heads * kv.v_dim * element, heads * k_scales,
          heads * v_scales};
}

KvCache::KvCache(const KernelTable& kernels, KvType type, int block_size,
                 std::vector<CacheGroupShape> groups, std::vector<CacheLayerShape> layers,
                 int64_t state_floats)
    : kernels_(kernels),
      type_(type),
      block_size_(block_size),
      groups_(std::move(groups)),
      layer_shapes_(std::move(layers)),
      num_blocks_(groups_.size(), 0),
      kv_(layer_shapes_.size()),
      states_(state_floats) {}

int64_t KvCache::block_bytes(int64_t g) const {
  int64_t bytes = 0;
  for (int l : group(g).layers) {
    const CacheLayerShape& shape = layer_shapes_[static_cast<size_t>(l)];
    bytes += round_up(kernels_.kv_block_bytes(type_, block_size_, shape.kv_heads, shape.head_dim,
                                              shape.v_dim),
                      static_cast<int64_t>(kAlign));
  }
  return bytes;
}

void KvCache::retype(KvType type) {
  free();
  type_ = type;
}

void KvCache::allocate(const std::vector<int64_t>& num_blocks, int64_t states) {
  if (num_blocks.size() != groups_.size()) {
    throw internal_error("the model has " + std::to_string(groups_.size()) +
                         " cache groups, got block counts of " +
                         std::to_string(num_blocks.size()));
  }
  int64_t total = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (num_blocks[g] < 1 || num_blocks[g] > INT32_MAX) {
      throw Error(ErrorKind::Config, "a KV cache needs at least one block per group, got " +
                                         std::to_string(num_blocks[g]));
    }
    int64_t bytes;
    if (__builtin_mul_overflow(num_blocks[g], block_bytes(static_cast<int64_t>(g)), &bytes) ||
        __builtin_add_overflow(total, bytes, &total)) {
      throw Error(ErrorKind::Resource, "the requested KV cache exceeds any address space");
    }
  }
  states_.allocate(states);
  Region region(static_cast<size_t>(total), "the KV cache");
  uint8_t* at = region.data();
  std::vector<Prefault::Group> pages(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    pages[g].blocks = num_blocks[g];
    for (int l : groups_[g].layers) {
      const CacheLayerShape& shape = layer_shapes_[static_cast<size_t>(l)];
      const int64_t stride = round_up(
          kernels_.kv_block_bytes(type_, block_size_, shape.kv_heads, shape.head_dim, shape.v_dim),
          static_cast<int64_t>(kAlign));
      kv_[static_cast<size_t>(l)] = {type_,       block_size_, shape.kv_heads, shape.head_dim,
                                     shape.v_dim, at,          stride};
      pages[g].arrays.push_back({at, stride});
      at += stride * num_blocks[g];
    }
  }
  prefault_.reset();
  region_ = std::move(region);
  if (total >= kPrefaultFrom) prefault_ = std::make_unique<Prefault>(std::move(pages));
  num_blocks_ = num_blocks;
  bytes_ = total;
}

void KvCache::free() {
  prefault_.reset();
  region_ = Region();
  states_.free();
  num_blocks_.assign(groups_.size(), 0);
  bytes_ = 0;
}

void KvCache::check_blocks(int64_t g, const int32_t* blocks, int64_t count) const {
  if (g < 0 || g >= groups()) throw internal_error("no cache group " + std::to_string(g));
  for (int64_t i = 0; i < count; ++i) {
    if (blocks[i] < 0 || blocks[i] >= num_blocks(g)) {
      throw internal_error("block " + std::to_string(blocks[i]) + " of cache group " +
                           std::to_string(g) + " is not one of its " +
                           std::to_string(num_blocks(g)));
    }
  }
}

void KvCache::give_back(int64_t g, const int32_t* blocks, int64_t count) {
  check_blocks(g, blocks, count);
  for (int64_t i = 0; i < count;) {
    const int64_t first = blocks[i];
    while (++i < count && blocks[i] == blocks[i - 1] + 1) {
    }
    const int64_t end = blocks[i - 1] + 1;
    // The thread that takes pages may be under way beyond `first`.
    if (prefault_ && end == num_blocks(g)) prefault_->given_back(g, first);
    const bool beyond = prefault_ && first >= prefault_->limit(g);
    for (int l : group(g).layers) {
      const KvLayer& kv = layer(l);
      Region::give_back(kv.base + first * kv.block_stride, kv.base + end * kv.block_stride, beyond);
    }
  }
}

void KvCache::limit(int64_t g, int64_t blocks) {
  if (prefault_) prefault_->limit(g, std::min(blocks, num_blocks(g)));
}

void KvCache::copy(int64_t g, const int32_t* pairs, int64_t count) {
  check_blocks(g, pairs, 2 * count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t source = pairs[2 * i], target = pairs[2 * i + 1];
    if (source == target) continue;
    for (int l : group(g).layers) {
      const KvLayer& kv = layer(l);
      std::memcpy(kv.base + target * kv.block_stride, kv.base + source * kv.block_stride,
                  static_cast<size_t>(kv.block_stride));
    }
  }
}

void KvCache::export_layer(int layer_index, const int32_t* blocks, int64_t count, void* keys,
                           void* values, float* key_scales, float* value_scales,
                           ThreadPool& pool) const {
  const KvLayer& kv = layer(layer_index);
  const PortableSizes size = portable_sizes(kv);
  pool.run(count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * block_size_; i < end * block_size_; ++i) {
      kernels_.kv_export(kv, blocks[i / block_size_], i % block_size_,
                         static_cast<uint8_t*>(keys) + i * size.k_bytes,
                         static_cast<uint8_t*>(values) + i * size.v_bytes,
                         key_scales == nullptr ? nullptr : key_scales + i * size.k_scales,
                         value_scales == nullptr ? nullptr : value_scales + i * size.v_scales);
    }
  });
}

void KvCache::import_layer(int layer_index, const int32_t* blocks, int64_t count, const void* keys,
                           const void* values, const float* key_scales, const float* value_scales,
                           ThreadPool& pool) {
  const KvLayer& kv = layer(layer_index);
  const PortableSizes size = portable_sizes(kv);
  pool.run(count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * block_size_; i < end * block_size_; ++i) {
      kernels_.kv_import(kv, blocks[i / block_size_], i % block_size_,
                         static_cast<const uint8_t*>(keys) + i * size.k_bytes,
                         static_cast<const uint8_t*>(values) + i * size.v_bytes,
                         key_scales == nullptr ? nullptr : key_scales + i * size.k_scales,
                         value_scales == nullptr ? nullptr : value_scales + i * size.v_scales);
    }
  });
}

void KvCache::read_blocks(int64_t g, const int32_t* blocks, int64_t count, uint8_t* out) const {
  check_blocks(g, blocks, count);
  for (int64_t i = 0; i < count; ++i) {
    for (int l : group(g).layers) {
      const KvLayer& kv = layer(l);
      const auto size = static_cast<size_t>(kv.block_stride);
      std::memcpy(out, kv.base + blocks[i] * kv.block_stride, size);
      out += size;
    }
  }
}

void KvCache::write_blocks(int64_t g, const int32_t* blocks, int64_t count, const uint8_t* data) {
  check_blocks(g, blocks, count);
  for (int64_t i = 0; i < count; ++i) {
    for (int l : group(g).layers) {
      const KvLayer& kv = layer(l);
      const auto size = static_cast<size_t>(kv.block_stride);
      std::memcpy(kv.base + blocks[i] * kv.block_stride, data, size);
      data += size;
    }
  }
}

}  // namespace tidemill
