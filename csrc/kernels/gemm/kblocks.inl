// GGUF's K types as stored in files: blocks of 256 values in eight groups of 32, with integer scales
// and one or two half-precision factors. Layout: ggml's reference functions.
//   Q4_K  144 bytes: half d, half dmin, 12 bytes of 6-bit scales and minima, 128 of nibbles (a low
//         and a high one are 32 values apart); value = d * scale * q - dmin * minimum
//   Q5_K  176 bytes: 32 bytes of fifth bits (bit g: group g) before the nibbles; else as Q4_K
//   Q6_K  210 bytes: 128 of nibbles, 64 of bit pairs, 16 int8 scales (one per 16 values), half d;
//         value = d * scale * (q - 32)

#include "kernels/gemm/codes.inl"

constexpr int64_t kGroup = 32;   // values per activation group and per weight group
constexpr int64_t kBlock = 256;  // values per block of a K type

static inline bool is_k_type(WeightType type) {
  return type == WeightType::Q4_K || type == WeightType::Q5_K || type == WeightType::Q6_K;
}

static inline int64_t k_block_bytes(WeightType type) {
  return type == WeightType::Q4_K ? 144 : type == WeightType::Q5_K ? 176 : 210;
}

// An unpacked block.
struct KBlock {
  uint16_t d, dmin;      // half precision; dmin is zero in Q6_K
  uint8_t scales[8][2];  // per group: scale and minimum; Q6_K: int8 scales of both halves
  uint8_t q[kBlock];

  // ggml's arithmetic in its order: each operation rounds once.
  float value(WeightType type, int64_t i) const {
    const uint8_t* pair = scales[i / kGroup];
    const float scale = half_to_float(d);
    if (type == WeightType::Q6_K)
      return scale * float(int8_t(pair[i / 16 % 2])) * float(int(q[i]) - 32);
    return scale * float(pair[0]) * float(q[i]) - half_to_float(dmin) * float(pair[1]);
  }
};

// 6-bit scales and minima of Q4_K and Q5_K: those of the first four groups fill the low six bits of
// eight bytes, whose top bits complete the nibbles of the last four bytes.
static inline void read_k_scales(const uint8_t* packed, KBlock& out) {
  for (int g = 0; g < 4; ++g) {
    const uint8_t scale = packed[g], minimum = packed[g + 4], rest = packed[g + 8];
    out.scales[g][0] = scale & 63;
    out.scales[g][1] = minimum & 63;
    out.scales[g + 4][0] = uint8_t((rest & 15) | (scale >> 6 << 4));
    out.scales[g + 4][1] = uint8_t((rest >> 4) | (minimum >> 6 << 4));
  }
}

static inline void read_q6_k(const uint8_t* block, KBlock& out) {
  out.d = load_as<uint16_t>(block + 208);
  out.dmin = 0;
  __builtin_memcpy(out.scales, block + 192, 16);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + 64 * half;
    const uint8_t* high = block + 128 + 32 * half;
    uint8_t* q = out.q + 128 * half;
    for (int i = 0; i < 32; ++i) {
      q[i] = uint8_t((low[i] & 15) | (high[i] & 3) << 4);
      q[32 + i] = uint8_t((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
      q[64 + i] = uint8_t(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      q[96 + i] = uint8_t(low[32 + i] >> 4 | high[i] >> 6 << 4);
    }
  }
}

static inline void read_k_block(WeightType type, const uint8_t* block, KBlock& out) {
  if (type == WeightType::Q6_K) return read_q6_k(block, out);
  out.d = load_as<uint16_t>(block);
  out.dmin = load_as<uint16_t>(block + 2);
  read_k_scales(block + 4, out);
  const uint8_t* nibbles = block + (type == WeightType::Q5_K ? 48 : 16);
  for (int g = 0; g < 8; g += 2) {
    for (int i = 0; i < 32; ++i) {
      out.q[g * 32 + i] = nibbles[g * 16 + i] & 15;
      out.q[g * 32 + 32 + i] = nibbles[g * 16 + i] >> 4;
    }
  }
  if (type != WeightType::Q5_K) return;
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i) out.q[g * 32 + i] |= uint8_t((block[16 + i] >> g & 1) << 4);
}

#include "kernels/gemm/legacy_blocks.inl"
