// Layout of one KV block, per KV head (block_size tokens; d is K's width or V's, which may differ):
//   F32   K [d][tokens],        V [tokens][d]
//   BF16  K [d / 2][tokens][2], V [tokens / 2][d][2]
//   I8    K [d][tokens],        V [tokens][d], then K and V scales, float [tokens] each
// Lanes of a score are tokens and lanes of an output are d, so neither needs a horizontal sum.
// Vectors of V may read past a row into the next one (the surplus lanes are never used); the slack
// keeps the last row's surplus inside the head.

struct CacheLayout {
  int64_t v_offset, scale_offset, head_bytes;
};

static inline int64_t element_bytes(KvType type) {
  return type == KvType::F32 ? 4 : type == KvType::BF16 ? 2 : 1;
}

static inline CacheLayout cache_layout(KvType type, int64_t block_size, int64_t head_dim,
                                       int64_t v_dim) {
  const int64_t slack = v_dim % 16 ? 64 : 0, row = block_size * element_bytes(type);
  CacheLayout layout;
  layout.v_offset = round_up(row * head_dim, 64);
  layout.scale_offset = layout.v_offset + round_up(row * v_dim + slack, 64);
  const int64_t scales = type == KvType::I8 ? 2 * block_size * 4 : 0;
  layout.head_bytes = round_up(layout.scale_offset + scales, 64);
  return layout;
}

static inline CacheLayout cache_layout(const KvLayer& kv) {
  return cache_layout(kv.type, kv.block_size, kv.head_dim, kv.v_dim);
}

static int64_t kv_block_bytes(KvType type, int64_t block_size, int64_t kv_heads, int64_t head_dim,
                              int64_t v_dim) {
  return kv_heads * cache_layout(type, block_size, head_dim, v_dim).head_bytes;
}

// Index, in elements, of value i of a token's K or V.
static inline int64_t k_index(const KvLayer& kv, int64_t slot, int64_t i) {
  if (kv.type == KvType::BF16) return (i / 2 * kv.block_size + slot) * 2 + i % 2;
  return i * kv.block_size + slot;
}
static inline int64_t v_index(const KvLayer& kv, int64_t slot, int64_t i) {
  if (kv.type == KvType::BF16) return (slot / 2 * kv.v_dim + i) * 2 + slot % 2;
  return slot * kv.v_dim + i;
}

static inline uint8_t* head_base(const KvLayer& kv, const CacheLayout& layout, int64_t block,
                                 int64_t head) {
  return kv.base + block * kv.block_stride + head * layout.head_bytes;
}

// One int8 scale per token and head: scale = max|x| / 127.
static inline float int8_inverse(const float* x, int64_t n, float* scale) {
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float a = __builtin_fabsf(x[i]);
    largest = a > largest ? a : largest;
  }
  *scale = largest / 127.0f;
  return largest > 0.0f ? 127.0f / largest : 0.0f;
}

static inline int8_t int8_round(float x) {
  x = x > -127.0f ? x : -127.0f;  // also turns a NaN into a value
  x = x < 127.0f ? x : 127.0f;
  return int8_t(int((x + 12582912.0f) - 12582912.0f));
}

static void kv_write(const KvLayer& kv, int64_t block, int64_t slot, const float* k,
                     const float* v) {
  const CacheLayout layout = cache_layout(kv);
  const int64_t d = kv.head_dim, dv = kv.v_dim;
  for (int64_t h = 0; h < kv.kv_heads; ++h, k += d, v += dv) {
    uint8_t* base = head_base(kv, layout, block, h);
    uint8_t* values = base + layout.v_offset;
    if (kv.type == KvType::F32) {
      for (int64_t i = 0; i < d; ++i) store_as(base + (i * kv.block_size + slot) * 4, k[i]);
      __builtin_memcpy(values + slot * dv * 4, v, size_t(dv) * 4);
    } else if (kv.type == KvType::BF16) {
      for (int64_t i = 0; i < d; i += 2) {
        const uint32_t pair =
            uint32_t(float_to_bf16(k[i])) | uint32_t(float_to_bf16(k[i + 1])) << 16;
        store_as(base + (i / 2 * kv.block_size + slot) * 4, pair);
      }
      uint8_t* row = values + (slot / 2 * dv * 2 + slot % 2) * 2;
      for (int64_t i = 0; i < dv; ++i) store_as(row + i * 4, float_to_bf16(v[i]));
    } else {
      float* scales = reinterpret_cast<float*>(base + layout.scale_offset);
      const float k_inverse = int8_inverse(k, d, scales + slot);
      const float v_inverse = int8_inverse(v, dv, scales + kv.block_size + slot);
      for (int64_t i = 0; i < d; ++i)
        base[i * kv.block_size + slot] = uint8_t(int8_round(k[i] * k_inverse));
      for (int64_t i = 0; i < dv; ++i)
        values[slot * dv + i] = uint8_t(int8_round(v[i] * v_inverse));
    }
  }
}

static void kv_export(const KvLayer& kv, int64_t block, int64_t slot, void* k, void* v,
                      float* k_scale, float* v_scale) {
  const CacheLayout layout = cache_layout(kv);
  const int64_t size = element_bytes(kv.type);
  uint8_t* k_out = static_cast<uint8_t*>(k);
  uint8_t* v_out = static_cast<uint8_t*>(v);
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    const uint8_t* base = head_base(kv, layout, block, h);
    for (int64_t i = 0; i < kv.head_dim; ++i, k_out += size)
      __builtin_memcpy(k_out, base + k_index(kv, slot, i) * size, size_t(size));
    for (int64_t i = 0; i < kv.v_dim; ++i, v_out += size)
      __builtin_memcpy(v_out, base + layout.v_offset + v_index(kv, slot, i) * size, size_t(size));
    if (kv.type != KvType::I8) continue;
    const uint8_t* scales = base + layout.scale_offset;
    k_scale[h] = load_as<float>(scales + slot * 4);
    v_scale[h] = load_as<float>(scales + (kv.block_size + slot) * 4);
  }
}

static void kv_import(const KvLayer& kv, int64_t block, int64_t slot, const void* k, const void* v,
                      const float* k_scale, const float* v_scale) {
  const CacheLayout layout = cache_layout(kv);
  const int64_t size = element_bytes(kv.type);
  const uint8_t* k_in = static_cast<const uint8_t*>(k);
  const uint8_t* v_in = static_cast<const uint8_t*>(v);
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    uint8_t* base = head_base(kv, layout, block, h);
    for (int64_t i = 0; i < kv.head_dim; ++i, k_in += size)
      __builtin_memcpy(base + k_index(kv, slot, i) * size, k_in, size_t(size));
    for (int64_t i = 0; i < kv.v_dim; ++i, v_in += size)
      __builtin_memcpy(base + layout.v_offset + v_index(kv, slot, i) * size, v_in, size_t(size));
    if (kv.type != KvType::I8) continue;
    uint8_t* scales = base + layout.scale_offset;
    store_as(scales + slot * 4, k_scale[h]);
    store_as(scales + (kv.block_size + slot) * 4, v_scale[h]);
  }
}

static inline float read_value(KvType type, const uint8_t* at, float scale) {
  if (type == KvType::F32) return load_as<float>(at);
  if (type == KvType::BF16) return bf16_to_float(load_as<uint16_t>(at));
  return scale * float(int8_t(*at));
}

static void kv_read(const KvLayer& kv, int64_t block, int64_t slot, float* k, float* v) {
  const CacheLayout layout = cache_layout(kv);
  const int64_t size = element_bytes(kv.type);
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    const uint8_t* base = head_base(kv, layout, block, h);
    float k_scale = 1.0f, v_scale = 1.0f;
    if (kv.type == KvType::I8) {
      k_scale = load_as<float>(base + layout.scale_offset + slot * 4);
      v_scale = load_as<float>(base + layout.scale_offset + (kv.block_size + slot) * 4);
    }
    for (int64_t i = 0; i < kv.head_dim; ++i)
      k[h * kv.head_dim + i] = read_value(kv.type, base + k_index(kv, slot, i) * size, k_scale);
    for (int64_t i = 0; i < kv.v_dim; ++i)
      v[h * kv.v_dim + i] =
          read_value(kv.type, base + layout.v_offset + v_index(kv, slot, i) * size, v_scale);
  }
}
