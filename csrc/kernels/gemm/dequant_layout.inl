// Layout of quantized weights for AMX: they are dequantized to bf16 in groups of 32 of k and 32 rows,
// scales included. The sums over all of k can then stay in the tile unit; with integers and a scale
// every 32 or 256 of k they would have to leave it each time (docs/kernels.md). Activations keep bf16
// precision. A weight is computed in half precision (11 bits) and rounded to bf16 (8 bits).
//
// To prevent overflow and loss of bits in half precision, a row's scales are multiplied by a power of
// two and its sums by the inverse, which is stored at the beginning of the panel.
//   panel    32 floats, factors of the rows' sums; then blocks
//   block    32 half scales (Q4_K, Q5_K, Q4_1, Q5_1: and 32 half offsets: of K types the minima, negated);
//            then one group (K types: eight)
//   group    K types: 32 scale bytes, then 32 minimum bytes (Q6_K: scales of k 0..15, then 16..31); codes
//   codes    in tile order: 16-bit words, 32 per vector; a word's lane is given by row % 16 and the
//            parity of k. Vector 2t + h is k = 2t and 2t + 1 of rows 16h..16h + 15.
//            Q8_0: int8 in this order. Others: words of vector x hold nibbles of vectors 4x..4x + 3.
//            Q5 and Q6 types: preceded by words with the bits above the nibbles, for 16 or 8 vectors.

constexpr int64_t kDequantHead = kPanel * 4;
constexpr int64_t kBf16GroupBytes = kGroup * kPanel * 2;  // bytes of a dequantized group
constexpr int kBf16GroupVecs = 32;                        // and its number of vectors

static inline bool is_dequantized(WeightType type) {
  return is_k_type(type) || type == WeightType::Q8_0 || type == WeightType::Q4_0 ||
         type == WeightType::IQ4_NL || is_legacy_type(type);
}

template <WeightType kType>
struct DequantLayout {
  static constexpr bool kByBlock = kType == WeightType::Q4_K || kType == WeightType::Q5_K ||
                                   kType == WeightType::Q6_K;
  static constexpr bool kMins = kType == WeightType::Q4_K || kType == WeightType::Q5_K ||
                                kType == WeightType::Q4_1 || kType == WeightType::Q5_1;
  static constexpr bool kBytes = kType == WeightType::Q8_0;
  static constexpr bool kFive = kType == WeightType::Q5_K || kType == WeightType::Q5_0 ||
                                kType == WeightType::Q5_1;
  static constexpr int kHighBits = kFive ? 1 : kType == WeightType::Q6_K ? 2 : 0;

  static constexpr int64_t kGroups = kByBlock ? kBlock / kGroup : 1;  // per block
  static constexpr int64_t kScaleBytes = kByBlock ? 2 * kPanel : 0;   // per group
  static constexpr int64_t kBlockHead = (kMins ? 2 : 1) * kPanel * 2;
  static constexpr int64_t kHigh = kScaleBytes, kCodes = kHigh + kHighBits * 128;
  static constexpr int64_t kGroupBytes = kCodes + (kBytes ? 1024 : 512);
  static constexpr int64_t kBlockBytes = kBlockHead + kGroups * kGroupBytes;

  static constexpr int64_t block_at(int64_t g) { return kDequantHead + g / kGroups * kBlockBytes; }
  static constexpr int64_t group_at(int64_t g) {
    return block_at(g) + kBlockHead + g % kGroups * kGroupBytes;
  }
  static constexpr int64_t panel_bytes(int64_t k) {
    return kDequantHead + k / kGroup / kGroups * kBlockBytes;
  }
  // Largest magnitude of any code's value for a scale (and minimum) of 1.
  static constexpr float kMaxMagnitude = kType == WeightType::Q8_0     ? 128
                                 : kType == WeightType::Q4_0   ? 8
                                 : kType == WeightType::IQ4_NL ? 127
                                 : kType == WeightType::Q4_1   ? 15
                                 : kType == WeightType::Q5_0   ? 16
                                 : kType == WeightType::Q5_1   ? 31
                                 : kType == WeightType::Q4_K   ? 63 * 15
                                 : kType == WeightType::Q5_K   ? 63 * 31
                                                               : 128 * 32;
  static constexpr float kMaxMinimum = !kMins ? 0 : kByBlock ? 63 : 1;
  static constexpr int kZero = kType == WeightType::Q4_0   ? 8
                               : kType == WeightType::Q5_0 ? 16
                               : kType == WeightType::Q6_K ? 32
                                                           : 0;

  // Value of a code of at most five bits.
  static constexpr int code_value(int code) {
    return kType == WeightType::IQ4_NL ? kIq4Values.at[code & 15]
           : kHighBits                 ? code - kZero
                                       : (code & 15) - kZero;
  }
};

template <class Of>
static inline auto with_dequant_type(WeightType type, Of of) {
  switch (type) {
    case WeightType::Q8_0: return of.template operator()<WeightType::Q8_0>();
    case WeightType::Q4_0: return of.template operator()<WeightType::Q4_0>();
    case WeightType::Q4_1: return of.template operator()<WeightType::Q4_1>();
    case WeightType::Q5_0: return of.template operator()<WeightType::Q5_0>();
    case WeightType::Q5_1: return of.template operator()<WeightType::Q5_1>();
    case WeightType::IQ4_NL: return of.template operator()<WeightType::IQ4_NL>();
    case WeightType::Q4_K: return of.template operator()<WeightType::Q4_K>();
    case WeightType::Q5_K: return of.template operator()<WeightType::Q5_K>();
    default: return of.template operator()<WeightType::Q6_K>();
  }
}

static inline int64_t dequant_panel_bytes(WeightType type, int64_t k) {
  return with_dequant_type(type, [&]<WeightType kType>() { return DequantLayout<kType>::panel_bytes(k); });
}
