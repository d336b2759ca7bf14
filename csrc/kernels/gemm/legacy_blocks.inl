// GGUF's older types of four and five bits as stored in files, in blocks of 32 (Q4_0 and Q8_0 have code
// of their own). Layout: ggml's reference functions.
//   Q4_1  20 bytes: half d, half m, 16 bytes of nibbles (byte j: values j and 16 + j)
//   Q5_0  22 bytes: half d, 32 fifth bits (bit j: value j), nibbles; value = d * (q - 16)
//   Q5_1  24 bytes: half d, half m, fifth bits, nibbles
// Where there is an m, value = d * q + m.

static constexpr bool is_legacy_type(WeightType type) {
  return type == WeightType::Q4_1 || type == WeightType::Q5_0 || type == WeightType::Q5_1;
}
static inline int64_t legacy_block_bytes(WeightType type) {
  return type == WeightType::Q4_1 ? 20 : type == WeightType::Q5_0 ? 22 : 24;
}

// An unpacked block.
struct LegacyBlock {
  uint16_t d, m;  // half precision; m is zero in Q5_0
  uint8_t q[kGroup];

  float value(WeightType type, int64_t i) const {
    const int zero = type == WeightType::Q5_0 ? 16 : 0;
    return half_to_float(d) * float(int(q[i]) - zero) + half_to_float(m);
  }
};

static inline void read_legacy_block(WeightType type, const uint8_t* block, LegacyBlock& out) {
  out.d = load_as<uint16_t>(block);
  out.m = type == WeightType::Q5_0 ? uint16_t(0) : load_as<uint16_t>(block + 2);
  const uint8_t* nibbles = block + legacy_block_bytes(type) - 16;
  const uint32_t fifth = type == WeightType::Q4_1 ? 0 : load_as<uint32_t>(nibbles - 4);
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
    out.q[i] = uint8_t(nibble | int(fifth >> i & 1) << 4);
  }
}
