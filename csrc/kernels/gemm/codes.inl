// 4-bit types whose codes index a table of values, in groups of 32 like Q4_0: byte j of 16 holds value
// j (low nibble) and value 16 + j (high). Layout: ggml's reference functions.
//   MXFP4   17 bytes: an exponent (OCP Microscaling e8m0), 16 bytes of e2m1. Values are doubled to be
//           integers, so the scale is half the power of two; bfloat16 represents all of them
//   IQ4_NL  18 bytes: half d, 16 bytes

static inline bool is_code_type(WeightType type) {
  return type == WeightType::MXFP4 || type == WeightType::IQ4_NL;
}

static inline int64_t code_block_bytes(WeightType type) {
  return type == WeightType::MXFP4 ? 17 : 18;
}

struct CodeValues {
  int8_t at[16];
};
constexpr CodeValues kMxfp4Values{{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
constexpr CodeValues kIq4Values{
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

static inline const CodeValues& code_values(WeightType type) {
  return type == WeightType::MXFP4 ? kMxfp4Values : kIq4Values;
}

// A block's scale as stored in a panel: bfloat16 for MXFP4 (the two smallest are subnormal), half for
// IQ4_NL.
static inline uint16_t code_scale_bits(WeightType type, const uint8_t* block) {
  if (type == WeightType::IQ4_NL) return load_as<uint16_t>(block);
  return block[0] < 2 ? uint16_t(0x20 << block[0]) : uint16_t((block[0] - 1) << 7);
}
static inline float code_scale(WeightType type, uint16_t bits) {
  return type == WeightType::MXFP4 ? bf16_to_float(bits) : half_to_float(bits);
}
