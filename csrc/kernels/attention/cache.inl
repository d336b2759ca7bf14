// Layout of one KV block, per KV head (block_size tokens; d is the width of K or of V, which may
// differ):
//   F32   K [d][tokens],        V [tokens][d]
//   BF16  K [d / 2][tokens][2], V [tokens / 2][d][2]; for tiles K [d / 32][tokens][32]
//   I8    K [d][tokens],        V [tokens][d], then K and V scales, float [tokens] each
//   I4    K [d / 2][tokens], low nibble = even d; V [tokens][ceil(d / 32)][16], where byte j of a run of
//         32 values holds value j (low nibble) and 16 + j (high); then bfloat16 pairs of scale and
//         minimum: K's [ceil(d / 32)][tokens], V's [tokens]
// Lanes of a score are tokens and lanes of an output are d, so neither needs a horizontal sum. Vectors
// of V may read past a row into the next one (the surplus lanes are not used); padding keeps the last
// row's surplus inside the head.

struct CacheLayout {
  int64_t v_offset, scale_offset, head_bytes;
};

static inline int64_t element_bytes(KvType type) {
  return type == KvType::F32 ? 4 : type == KvType::BF16 ? 2 : 1;
}

static inline int64_t key_groups(int64_t head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }

// Bytes of a token's V in an I4 cache: whole runs of 32.
static inline int64_t nibble_row(int64_t v_dim) { return round_up(v_dim, 32) / 2; }

static inline CacheLayout cache_layout(KvType type, int64_t block_size, int64_t head_dim,
                                       int64_t v_dim) {
  const int64_t slack = v_dim % 16 ? 64 : 0, row = block_size * element_bytes(type);
  const bool nibbles = type == KvType::I4;
  CacheLayout layout;
  layout.v_offset = round_up(nibbles ? row * head_dim / 2 : row * head_dim, 64);
  const int64_t v_bytes = nibbles ? block_size * nibble_row(v_dim) : row * v_dim + slack;
  layout.scale_offset = layout.v_offset + round_up(v_bytes, 64);
  const int64_t scales = nibbles ? key_groups(head_dim) + 1 : type == KvType::I8 ? 2 : 0;
  layout.head_bytes = round_up(layout.scale_offset + scales * block_size * 4, 64);
  return layout;
}

static inline CacheLayout cache_layout(const KvLayer& kv) {
  return cache_layout(kv.type, kv.block_size, kv.head_dim, kv.v_dim);
}

static int64_t kv_block_bytes(KvType type, int64_t block_size, int64_t kv_heads, int64_t head_dim,
                              int64_t v_dim) {
  return kv_heads * cache_layout(type, block_size, head_dim, v_dim).head_bytes;
}

// Consecutive values of a key in the tile layout, so that a token's keys touch few cache lines.
constexpr int64_t kKeyRun = 32;

static inline bool is_tiled([[maybe_unused]] const KvLayer& kv) {
#ifdef TIDEMILL_AMX
  return kv.type == KvType::BF16 && kv.head_dim % kKeyRun == 0 && kv.v_dim % kKeyRun == 0;
#else
  return false;
#endif
}

// Index, in elements, of value i of a token's K or V.
static inline int64_t k_index(const KvLayer& kv, int64_t slot, int64_t i) {
  if (is_tiled(kv)) return (i / kKeyRun * kv.block_size + slot) * kKeyRun + i % kKeyRun;
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
  x = x > -127.0f ? x : -127.0f;  // also replaces NaN
  x = x < 127.0f ? x : 127.0f;
  return int8_t(int((x + 12582912.0f) - 12582912.0f));
}

// Scale and minimum of an I4 group as stored: the minimum is rounded down and the scale up, so that no
// value is clipped.
static inline uint32_t int4_pair(const float* x, int64_t n) {
  float lo = kInfinity, hi = -kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  if (!(lo <= hi)) lo = hi = 0.0f;  // all NaN
  const uint32_t low_bits = float_bits(lo);
  const uint32_t minimum = (low_bits >> 31 ? low_bits + 0xffff : low_bits) & 0xffff0000u;
  const uint32_t step = float_bits((hi - bits_float(minimum)) / 15.0f);
  return minimum | (step + 0xffff) >> 16;
}
static inline float int4_scale(uint32_t pair) { return bits_float(pair << 16); }
static inline float int4_minimum(uint32_t pair) { return bits_float(pair & 0xffff0000u); }

static inline uint8_t int4_round(float x) {
  x = x > 0.0f ? x : 0.0f;  // also replaces NaN
  x = x < 15.0f ? x : 15.0f;
  return uint8_t(int((x + 12582912.0f) - 12582912.0f));
}

// Quantizes n values with a (scale, minimum) pair, one byte each.
static inline void int4_quantize(const float* x, int64_t n, uint32_t pair, uint8_t* out) {
  const float minimum = int4_minimum(pair), scale = int4_scale(pair);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = int4_round((x[i] - minimum) * inverse);
}

// Index of one token's values and pairs in one KV head of an I4 block.
struct NibbleHead {
  const KvLayer& kv;
  uint8_t* base;
  const CacheLayout& layout;
  int64_t slot;

  uint8_t* key_byte(int64_t i) const { return base + i / 2 * kv.block_size + slot; }
  uint8_t* value_byte(int64_t i) const {
    return base + layout.v_offset + slot * nibble_row(kv.v_dim) + i / 32 * 16 + i % 16;
  }
  static int key_shift(int64_t i) { return i % 2 * 4; }
  static int value_shift(int64_t i) { return i / 16 % 2 * 4; }
  uint8_t* key_pair(int64_t group) const {
    return base + layout.scale_offset + (group * kv.block_size + slot) * 4;
  }
  uint8_t* value_pair() const { return key_pair(key_groups(kv.head_dim)); }

  static uint8_t get(const uint8_t* byte, int shift) { return uint8_t(*byte >> shift & 15); }
  static void set(uint8_t* byte, int shift, uint8_t value) {
    *byte = uint8_t((*byte & 0xf0 >> shift) | value << shift);
  }
};

static inline void write_nibbles(const NibbleHead& head, const float* k, const float* v) {
  uint8_t q[32];
  const int64_t d = head.kv.head_dim, dv = head.kv.v_dim;
  for (int64_t from = 0; from < d; from += kKvGroup) {
    const int64_t count = min64(kKvGroup, d - from);
    const uint32_t pair = int4_pair(k + from, count);
    store_as(head.key_pair(from / kKvGroup), pair);
    int4_quantize(k + from, count, pair, q);
    for (int64_t i = 0; i < count; i += 2) *head.key_byte(from + i) = uint8_t(q[i] | q[i + 1] << 4);
  }
  const uint32_t pair = int4_pair(v, dv);
  store_as(head.value_pair(), pair);
  for (int64_t from = 0; from < dv; from += 32) {
    __builtin_memset(q, 0, sizeof q);
    int4_quantize(v + from, min64(32, dv - from), pair, q);
    uint8_t* run = head.value_byte(from);
    for (int64_t j = 0; j < 16; ++j) run[j] = uint8_t(q[j] | q[16 + j] << 4);
  }
}

// One byte per value, pairs as floats.
static inline void export_nibbles(const NibbleHead& head, uint8_t* k, uint8_t* v, float* k_scale,
                                  float* v_scale) {
  for (int64_t i = 0; i < head.kv.head_dim; ++i)
    k[i] = NibbleHead::get(head.key_byte(i), NibbleHead::key_shift(i));
  for (int64_t i = 0; i < head.kv.v_dim; ++i)
    v[i] = NibbleHead::get(head.value_byte(i), NibbleHead::value_shift(i));
  const auto put = [](const uint8_t* at, float* out) {
    const uint32_t pair = load_as<uint32_t>(at);
    out[0] = int4_scale(pair);
    out[1] = int4_minimum(pair);
  };
  for (int64_t g = 0; g < key_groups(head.kv.head_dim); ++g) put(head.key_pair(g), k_scale + 2 * g);
  put(head.value_pair(), v_scale);
}

static inline void import_nibbles(const NibbleHead& head, const uint8_t* k, const uint8_t* v,
                                  const float* k_scale, const float* v_scale) {
  for (int64_t i = 0; i < head.kv.head_dim; ++i)
    NibbleHead::set(head.key_byte(i), NibbleHead::key_shift(i), k[i] & 15);
  for (int64_t i = 0; i < head.kv.v_dim; ++i)
    NibbleHead::set(head.value_byte(i), NibbleHead::value_shift(i), v[i] & 15);
  const auto put = [](uint8_t* at, const float* pair) {
    store_as(at, float_bits(pair[0]) >> 16 | (float_bits(pair[1]) & 0xffff0000u));
  };
  for (int64_t g = 0; g < key_groups(head.kv.head_dim); ++g) put(head.key_pair(g), k_scale + 2 * g);
  put(head.value_pair(), v_scale);
}

#ifdef TIDEMILL_AMX
// Writes one token's K and V in one KV head of a block in tile layout.
static inline void write_tiled(const KvLayer& kv, uint8_t* base, uint8_t* values, int64_t slot,
                               const float* k, const float* v) {
  for (int64_t i = 0; i < kv.head_dim; i += kKeyRun)
    istore(base + k_index(kv, slot, i) * 2, round_bf16_pair(vload(k + i), vload(k + i + kLanes)));
  // The pair's other token keeps its half of the lane.
  uint8_t* const row = values + slot / 2 * kv.v_dim * 4;
  const bool odd = slot % 2;
  const Vi upper = iset(int32_t(0xffff0000u)), lower = iset(0x0000ffff);
  for (int64_t i = 0; i < kv.v_dim; i += kLanes) {
    const Vi pair = iload(row + i * 4), value = round_bf16(vload(v + i));
    istore(row + i * 4, odd ? imerge(iand(pair, lower), value, upper)
                            : imerge(ishift_left<-16>(value), pair, upper));
  }
}
#endif

static void kv_write(const KvLayer& kv, int64_t block, int64_t slot, const float* k,
                     const float* v) {
  const CacheLayout layout = cache_layout(kv);
  const int64_t d = kv.head_dim, dv = kv.v_dim;
  for (int64_t h = 0; h < kv.kv_heads; ++h, k += d, v += dv) {
    uint8_t* base = head_base(kv, layout, block, h);
    uint8_t* values = base + layout.v_offset;
#ifdef TIDEMILL_AMX
    if (is_tiled(kv)) {
      write_tiled(kv, base, values, slot, k, v);
      continue;
    }
#endif
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
    } else if (kv.type == KvType::I4) {
      write_nibbles({kv, base, layout, slot}, k, v);
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
    uint8_t* base = head_base(kv, layout, block, h);
    if (kv.type == KvType::I4) {
      export_nibbles({kv, base, layout, slot}, k_out + h * kv.head_dim, v_out + h * kv.v_dim,
                     k_scale + h * 2 * key_groups(kv.head_dim), v_scale + h * 2);
      continue;
    }
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
    if (kv.type == KvType::I4) {
      import_nibbles({kv, base, layout, slot}, k_in + h * kv.head_dim, v_in + h * kv.v_dim,
                     k_scale + h * 2 * key_groups(kv.head_dim), v_scale + h * 2);
      continue;
    }
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

// scale * q is exact, so the sum rounds once, whether fused or not.
static inline float int4_value(uint8_t q, uint32_t pair) {
  return float(q) * int4_scale(pair) + int4_minimum(pair);
}

static inline void read_nibbles(const NibbleHead& head, float* k, float* v) {
  for (int64_t i = 0; i < head.kv.head_dim; ++i)
    k[i] = int4_value(NibbleHead::get(head.key_byte(i), NibbleHead::key_shift(i)),
                      load_as<uint32_t>(head.key_pair(i / kKvGroup)));
  const uint32_t pair = load_as<uint32_t>(head.value_pair());
  for (int64_t i = 0; i < head.kv.v_dim; ++i)
    v[i] = int4_value(NibbleHead::get(head.value_byte(i), NibbleHead::value_shift(i)), pair);
}

static void kv_read(const KvLayer& kv, int64_t block, int64_t slot, float* k, float* v) {
  const CacheLayout layout = cache_layout(kv);
  const int64_t size = element_bytes(kv.type);
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    uint8_t* base = head_base(kv, layout, block, h);
    if (kv.type == KvType::I4) {
      read_nibbles({kv, base, layout, slot}, k + h * kv.head_dim, v + h * kv.v_dim);
      continue;
    }
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
