// Packed weight panels: kPanel output rows, ordered by k, so that a vector holds the same k of
// consecutive rows and no horizontal sums are needed.
//   F32   per k:        32 floats
//   F16   per k:        32 halves
//   BF16  per k pair:   32 rows x 2 values (an odd k is padded with zero)
//   Q8_0  per group:    32 half scales, then 8 quads of k: 32 rows x 4 bytes q + 128,
//                       or q itself where signed bytes are multiplied (kQ8Flip)
//   Q4_0  per group:    32 half scales, then 4 x 32 rows x 4 bytes; byte b of part c holds
//                       q + 8 of k = 4c + b (low nibble) and 16 + 4c + b (high), GGUF's own order
//   MXFP4, IQ4_NL as Q4_0, nibbles as they are (codes.inl); the scales of MXFP4 are bfloat16
//   K types       see kpack.inl; Q4_1, Q5_0 and Q5_1: legacy_pack.inl
//   I8            see channel.inl
// With AMX, quantized types except MXFP4 and I8 have another layout (dequant_layout.inl). In Q8_0, I8
// and 4-bit types, kDotBytes bytes of a row are adjacent: four (as above) or eight.

#ifdef TIDEMILL_AMX
#include "kernels/gemm/dequant_layout.inl"
#else
static inline bool is_dequantized(WeightType) { return false; }
static inline int64_t dequant_panel_bytes(WeightType, int64_t) { return 0; }
#endif

constexpr int64_t kQ8GroupBytes = 64 + 1024;
constexpr int64_t kQ4GroupBytes = 64 + 512;

static inline int64_t channel_panel_bytes(int64_t k);
static inline int64_t legacy_panel_bytes(WeightType type, int64_t k);

// Offset of byte i of row j in an int8 panel or group (Q4_0: of the byte whose low nibble is i).
static inline int64_t byte_at(int64_t j, int64_t i) {
  return i / kDotBytes * kPanel * kDotBytes + j * kDotBytes + i % kDotBytes;
}

static ActType act_type(WeightType weight, bool float32_compute) {
  if (is_dequantized(weight)) return ActType::BF16;
  switch (weight) {
    case WeightType::Q8_0:
    case WeightType::IQ4_NL:
      return kPairDots ? ActType::I8SignMagnitude : ActType::I8;
    case WeightType::Q4_0:
    case WeightType::MXFP4:
    case WeightType::Q4_1:
    case WeightType::Q5_0:
    case WeightType::Q5_1:
      return ActType::I8;
    case WeightType::Q4_K:
    case WeightType::Q5_K:
    case WeightType::Q6_K:
      return ActType::I8Block;
    case WeightType::I8:
      return ActType::I8Row;
    case WeightType::BF16:
      return float32_compute ? ActType::F32 : ActType::BF16;
    default:
      return ActType::F32;
  }
}

static int64_t panel_bytes(WeightType weight, [[maybe_unused]] ActType act, int64_t k) {
  if (is_dequantized(weight)) return dequant_panel_bytes(weight, k);
  switch (weight) {
    case WeightType::F32:
      return k * kPanel * 4;
    case WeightType::F16:
      return k * kPanel * 2;
    case WeightType::BF16:
#ifdef TIDEMILL_AMX
      if (act == ActType::BF16) return round_up(k, 32) / 2 * kPanel * 4;  // whole tiles
#endif
      return (k + 1) / 2 * kPanel * 4;
    case WeightType::Q8_0:
      return k / kGroup * kQ8GroupBytes;
    case WeightType::Q4_0:
    case WeightType::MXFP4:
    case WeightType::IQ4_NL:
      return k / kGroup * kQ4GroupBytes;
    case WeightType::Q4_K:
    case WeightType::Q5_K:
    case WeightType::Q6_K:
      return k_panel_bytes(weight, k);
    case WeightType::Q4_1:
    case WeightType::Q5_0:
    case WeightType::Q5_1:
      return legacy_panel_bytes(weight, k);
    case WeightType::I8:
      return channel_panel_bytes(k);
  }
  return 0;
}

static inline int64_t source_bytes(WeightType type, int64_t count) {
  switch (type) {
    case WeightType::F32:
      return count * 4;
    case WeightType::I8:
      return 4 + count;
    case WeightType::Q8_0:
      return count / 32 * 34;
    case WeightType::Q4_0:
      return count / 32 * 18;
    case WeightType::MXFP4:
    case WeightType::IQ4_NL:
      return count / 32 * code_block_bytes(type);
    case WeightType::Q4_K:
    case WeightType::Q5_K:
    case WeightType::Q6_K:
      return count / kBlock * k_block_bytes(type);
    case WeightType::Q4_1:
    case WeightType::Q5_0:
    case WeightType::Q5_1:
      return count / kGroup * legacy_block_bytes(type);
    default:
      return count * 2;
  }
}

// Stores kGroup bytes from 32-bit lanes.
#ifndef TIDEMILL_STORE_GROUP_S8
static inline void istore_group_s8(int8_t* p, const Vi (&q)[kGroup / kLanes]) {
  for (int i = 0; i < kGroup / kLanes; ++i) istore_s8(p + i * kLanes, q[i]);
}
#endif

// Rounds kGroup activations (load(i) returns those starting at i) to int8 with the given inverse scale,
// and returns lane sums of both halves.
template <class Load>
static inline void round_group(Load load, Vf inverse, int8_t* out, Vi* sum) {
  Vi q[kGroup / kLanes];
  sum[0] = sum[1] = iset(0);
  for (int j = 0; j < kGroup / kLanes; ++j) {
    // A subnormal bound overflows the quotient; the clamp keeps q within +-127, also for NaN.
    const Vf scaled = vmul(load(j * kLanes), inverse);
    q[j] = vround(vmin(vmax(scaled, vset(-127.0f)), vset(127.0f)));
    sum[j * kLanes / 16] = iadd(sum[j * kLanes / 16], q[j]);
  }
  istore_group_s8(out, q);
}

// Activations as operands of products with 8-bit weights: bytes per value, and rounding of kGroup
// values into that form. Returns lanes; kStartQ8 times their sum is the initial value of the products'
// sums.
constexpr int64_t kActBytesQ8 = kPairDots ? 2 : 1;
#ifdef TIDEMILL_INT8X4_Q8
constexpr int32_t kStartQ8 = 1;
#else
constexpr int32_t kStartQ8 = -128;
#endif
template <class Load>
static inline Vi round_act_q8(Load load, Vf inverse, uint8_t* to) {
  Vi sum[2];
#ifdef TIDEMILL_INT8X4_Q8
  int8_t q[kGroup];
  round_group(load, inverse, q, sum);
  return store_act_q8(q, to);
#else
  round_group(load, inverse, reinterpret_cast<int8_t*>(to), sum);
  return iadd(sum[0], sum[1]);
#endif
}

static inline int8_t round_half_away(float x) {
  const int whole = int(x);
  const float rest = x - float(whole);
  return int8_t(whole + int(rest >= 0.5f) - int(rest <= -0.5f));
}

#include "kernels/gemm/channel.inl"
#include "kernels/gemm/legacy_pack.inl"

// GGUF's reference rule: d = max|x| / 127, q = x / d rounded half away from zero.
static inline uint16_t quantize_q8(const float* x, int8_t* q) {
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) {
    const float a = __builtin_fabsf(x[i]);
    largest = a > largest ? a : largest;
  }
  const float d = largest / 127.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  for (int i = 0; i < 32; ++i) q[i] = round_half_away(x[i] * inverse);
  return float_to_half(d);
}

// GGUF's reference rule: d = (the value of largest magnitude, the first of them) / -8.
static inline uint16_t quantize_q4(const float* x, uint8_t* nibbles) {
  float largest = 0.0f, signed_largest = 0.0f;
  for (int i = 0; i < 32; ++i) {
    const float a = __builtin_fabsf(x[i]);
    if (a > largest) {
      largest = a;
      signed_largest = x[i];
    }
  }
  const float d = signed_largest / -8.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  for (int i = 0; i < 16; ++i) {
    const int low = int8_t(x[i] * inverse + 8.5f);
    const int high = int8_t(x[16 + i] * inverse + 8.5f);
    nibbles[i] = uint8_t((low < 15 ? low : 15) | ((high < 15 ? high : 15) << 4));
  }
  return float_to_half(d);
}

// Packs one row's group of 32.
static inline void pack_q8(WeightType from, const uint8_t* row, int64_t g, int64_t j,
                           uint8_t* group) {
  int8_t q[32];
  uint16_t scale;
  if (from == WeightType::Q8_0) {
    scale = load_as<uint16_t>(row + g * 34);
    __builtin_memcpy(q, row + g * 34 + 2, 32);
  } else {
    float x[32];
    to_float(from, row + source_bytes(from, g * 32), 32, x);
    scale = quantize_q8(x, q);
  }
  store_as(group + 2 * j, scale);
  for (int quad = 0; quad < 8; ++quad)
    store_as(group + 64 + byte_at(j, 4 * quad), load_as<uint32_t>(q + 4 * quad) ^ kQ8Flip);
}

// Writes 16 bytes of nibbles of row j into its group; reads value i of the group.
static inline void store_nibbles(const uint8_t* nibbles, int64_t j, uint8_t* group) {
  for (int part = 0; part < 4; ++part)
    store_as(group + 64 + byte_at(j, 4 * part), load_as<uint32_t>(nibbles + 4 * part));
}
static inline int nibble_of(const uint8_t* group, int64_t j, int64_t i) {
  const uint8_t byte = group[64 + byte_at(j, i % 16)];
  return i < 16 ? byte & 15 : byte >> 4;
}

static inline void pack_q4(WeightType from, const uint8_t* row, int64_t g, int64_t j,
                           uint8_t* group) {
  uint8_t nibbles[16];
  uint16_t scale;
  if (from == WeightType::Q4_0) {
    scale = load_as<uint16_t>(row + g * 18);
    __builtin_memcpy(nibbles, row + g * 18 + 2, 16);
  } else {
    float x[32];
    to_float(from, row + source_bytes(from, g * 32), 32, x);
    scale = quantize_q4(x, nibbles);
  }
  store_as(group + 2 * j, scale);
  store_nibbles(nibbles, j, group);
}

static inline void pack_codes(WeightType type, const uint8_t* row, int64_t g, int64_t j,
                              uint8_t* group) {
  const uint8_t* block = row + g * code_block_bytes(type);
  store_as(group + 2 * j, code_scale_bits(type, block));
  store_nibbles(block + code_block_bytes(type) - 16, j, group);
}

// Packs values k0 .. k0 + count of one row of a float matrix.
static inline void pack_float(WeightType from, const uint8_t* row, WeightType to, int64_t k0,
                              int64_t count, int64_t j, uint8_t* panel) {
  if (from == to && to != WeightType::F32) {
    const uint8_t* source = row + k0 * 2;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = k0 + i;
      const int64_t at = to == WeightType::F16 ? k * kPanel + j : (k / 2 * kPanel + j) * 2 + k % 2;
      store_as(panel + 2 * at, load_as<uint16_t>(source + 2 * i));
    }
    return;
  }
  float x[32];
  to_float(from, row + source_bytes(from, k0), count, x);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = k0 + i;
    if (to == WeightType::F32) {
      store_as(panel + (k * kPanel + j) * 4, x[i]);
    } else if (to == WeightType::F16) {
      store_as(panel + (k * kPanel + j) * 2, float_to_half(x[i]));
    } else {
      store_as(panel + ((k / 2 * kPanel + j) * 2 + k % 2) * 2, float_to_bf16(x[i]));
    }
  }
}

#ifdef TIDEMILL_AMX
#include "kernels/gemm/dequant_pack.inl"
#else
static void pack_dequant_panel(WeightType, WeightType, const uint8_t*, int64_t, int64_t, int64_t,
                            uint8_t*) {}
static void unpack_dequant_row(WeightType, const uint8_t*, int64_t, int64_t, float*) {}
#endif

static void pack_panel(WeightType from, const void* source, WeightType to, ActType act,
                       int64_t n0, int64_t n, int64_t k, uint8_t* panel) {
  const int64_t rows = max64(0, min64(kPanel, n - n0));
  const int64_t row_bytes = source_bytes(from, k);
  const uint8_t* first = static_cast<const uint8_t*>(source) + n0 * row_bytes;
  if (is_dequantized(to)) return pack_dequant_panel(from, to, first, row_bytes, rows, k, panel);
  if (is_k_type(to)) return pack_k_panel(to, first, row_bytes, rows, k, panel);
  if (is_legacy_type(to)) return pack_legacy_panel(to, first, row_bytes, rows, k, panel);
  if (to == WeightType::I8) return pack_channel_panel(from, first, row_bytes, rows, k, panel);
  const bool quantized = to == WeightType::Q8_0 || to == WeightType::Q4_0 || is_code_type(to);
  const int64_t group_bytes = to == WeightType::Q8_0 ? kQ8GroupBytes : kQ4GroupBytes;
  if (!quantized && (rows < kPanel || k % 32))
    __builtin_memset(panel, 0, size_t(panel_bytes(to, act, k)));
  for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
    uint8_t* group = panel + k0 / kGroup * group_bytes;
    if (quantized && rows < kPanel) {
      __builtin_memset(group, 0, 64);
      __builtin_memset(group + 64, to == WeightType::Q8_0 ? int(kQ8Flip & 0xff) : 0x88, size_t(group_bytes - 64));
    }
    for (int64_t j = 0; j < rows; ++j) {
      const uint8_t* row = first + j * row_bytes;
      if (to == WeightType::Q8_0) {
        pack_q8(from, row, k0 / kGroup, j, group);
      } else if (to == WeightType::Q4_0) {
        pack_q4(from, row, k0 / kGroup, j, group);
      } else if (is_code_type(to)) {
        pack_codes(to, row, k0 / kGroup, j, group);
      } else {
        pack_float(from, row, to, k0, min64(kGroup, k - k0), j, panel);
      }
    }
  }
}

static void unpack_row(const PackedMatrix& w, int64_t row, float* out) {
  const uint8_t* panel = w.data + row / kPanel * w.panel_bytes;
  const int64_t j = row % kPanel;
  if (is_dequantized(w.type)) return unpack_dequant_row(w.type, panel, j, w.k, out);
  if (is_k_type(w.type)) return unpack_k_row(w.type, panel, j, w.k, out);
  if (is_legacy_type(w.type)) return unpack_legacy_row(w.type, panel, j, w.k, out);
  if (w.type == WeightType::I8) return unpack_channel_row(panel, j, w.k, out);
  for (int64_t k = 0; k < w.k; ++k) {
    const int64_t g = k / kGroup, i = k % kGroup;
    switch (w.type) {
      case WeightType::F32:
        out[k] = load_as<float>(panel + (k * kPanel + j) * 4);
        break;
      case WeightType::F16:
        out[k] = half_to_float(load_as<uint16_t>(panel + (k * kPanel + j) * 2));
        break;
      case WeightType::BF16:
        out[k] = bf16_to_float(load_as<uint16_t>(panel + ((k / 2 * kPanel + j) * 2 + k % 2) * 2));
        break;
      case WeightType::Q8_0: {
        const uint8_t* group = panel + g * kQ8GroupBytes;
        const float d = half_to_float(load_as<uint16_t>(group + 2 * j));
        out[k] = d * float(int8_t(group[64 + byte_at(j, i)] ^ uint8_t(kQ8Flip)));
        break;
      }
      case WeightType::Q4_0: {
        const uint8_t* group = panel + g * kQ4GroupBytes;
        const float d = half_to_float(load_as<uint16_t>(group + 2 * j));
        out[k] = d * float(nibble_of(group, j, i) - 8);
        break;
      }
      case WeightType::MXFP4:
      case WeightType::IQ4_NL: {
        const uint8_t* group = panel + g * kQ4GroupBytes;
        const float d = code_scale(w.type, load_as<uint16_t>(group + 2 * j));
        out[k] = d * float(code_values(w.type).at[nibble_of(group, j, i)]);
        break;
      }
      default:
        break;  // handled above
    }
  }
}
