// Dequantizes groups of quantized weights (dequant_layout.inl) to bf16, vector by vector.

// Duplicates each row's value: lanes 2c and 2c + 1 hold row c of the selected half.
template <int kHalf>
static TIDEMILL_INLINE Vi both_lanes(Vi rows) {
  alignas(64) static constexpr struct Lanes {
    uint16_t at[32];
    constexpr Lanes() : at() {
      for (int i = 0; i < 32; ++i) at[i] = uint16_t(16 * kHalf + i / 2);
    }
  } lanes;
  return words_look_up(rows, iload(lanes.at));
}

template <WeightType kType>
static TIDEMILL_INLINE Vi code_halves() {
  alignas(64) static constexpr struct Table {
    uint16_t at[32];
    constexpr Table() : at() {
      for (int i = 0; i < 32; ++i) {
        const int value = DequantLayout<kType>::code_value(i);
        unsigned size = value < 0 ? unsigned(-value) : unsigned(value), exponent = 0;
        while (size >> exponent > 1) ++exponent;
        at[i] = size == 0 ? uint16_t(0)
                          : uint16_t((value < 0 ? 0x8000u : 0u) | ((exponent + 15) << 10) |
                                     ((size << 10 >> exponent) & 0x3ffu));
      }
    }
  } table;
  return iload(table.at);
}

// Scales of a group for rows 0..15 and 16..31 (Q6_K: for k 0..15 and 16..31 separately), and the
// offsets added to the products.
template <WeightType kType>
struct DequantScales {
  using Layout = DequantLayout<kType>;
  static constexpr bool kApart = kType == WeightType::Q6_K;  // separate scales for both halves of k
  Vi scale[kApart ? 2 : 1][2], offset[kApart ? 2 : 1][2];

  TIDEMILL_INLINE DequantScales(const uint8_t* head, const uint8_t* group) {
    Vi d = iload(head);
    if constexpr (!Layout::kByBlock) {
      set(0, d);
      if constexpr (Layout::kMins) {
        const Vi offsets = iload(head + 64);
        offset[0][0] = both_lanes<0>(offsets);
        offset[0][1] = both_lanes<1>(offsets);
      }
    } else {
      TIDEMILL_UNROLL
      for (int part = 0; part < (kApart ? 2 : 1); ++part)
        set(part, halves_mul(halves_of_words(words_of_bytes(group + part * kPanel)), d));
      if constexpr (kApart) {
        TIDEMILL_UNROLL
        for (int part = 0; part < 2; ++part) {
          TIDEMILL_UNROLL
          for (int half = 0; half < 2; ++half)
            offset[part][half] = halves_mul(scale[part][half], words_set(0xd000));  // -32
        }
      } else {
        const Vi minima = halves_mul(halves_of_words(words_of_bytes(group + kPanel)),
                                     iload(head + 64));
        offset[0][0] = both_lanes<0>(minima);
        offset[0][1] = both_lanes<1>(minima);
      }
    }
  }
  TIDEMILL_INLINE void set(int part, Vi rows) {
    scale[part][0] = both_lanes<0>(rows);
    scale[part][1] = both_lanes<1>(rows);
  }
};

// A code's value in half precision; for codes of more than five bits, the code itself.
template <WeightType kType, int kVec>
static TIDEMILL_INLINE Vi code_value_bits(const uint8_t* group) {
  using Layout = DequantLayout<kType>;
  if constexpr (Layout::kBytes) {
    return halves_of_words(words_of_bytes(group + Layout::kCodes + kVec * 32));
  } else {
    const Vi nibbles = words_shift<kVec % 4 * 4>(iload(group + Layout::kCodes + kVec / 4 * 64));
    if constexpr (Layout::kHighBits == 0) {
      // The table holds every value twice, so that the bit above a nibble is ignored.
      return words_look_up(code_halves<kType>(), nibbles);
    } else {
      constexpr int kVecs = 16 / Layout::kHighBits;
      const Vi high = words_shift<kVec % kVecs * Layout::kHighBits - 4>(
          iload(group + Layout::kHigh + kVec / kVecs * 64));
      if constexpr (Layout::kHighBits == 1)
        return words_look_up(code_halves<kType>(), bits_select(nibbles, high, words_set(0x10)));
      return halves_of_words(iand(bits_select(nibbles, high, words_set(0x30)), words_set(0x3f)));
    }
  }
}

template <WeightType kType, int kVec>
static TIDEMILL_INLINE void dequantize_vectors(const uint8_t* group, const DequantScales<kType>& by,
                                          uint8_t* to) {
  using Layout = DequantLayout<kType>;
  constexpr int part = DequantScales<kType>::kApart ? kVec / 16 : 0, half = kVec % 2;
  const Vi value = code_value_bits<kType, kVec>(group);
  const Vi scale = by.scale[part][half];
  Vi weight;
  if constexpr (Layout::kByBlock || Layout::kMins) {
    weight = halves_fma(value, scale, by.offset[part][half]);
  } else {
    weight = halves_mul(value, scale);
  }
  istore(to + kVec * 64, halves_to_bf16(weight));
  if constexpr (kVec + 1 < kBf16GroupVecs) dequantize_vectors<kType, kVec + 1>(group, by, to);
}

// Dequantizes group g of a panel: kBf16GroupBytes bytes in tile order.
template <WeightType kType>
static TIDEMILL_INLINE void dequantize_group(const uint8_t* panel, int64_t g, uint8_t* to) {
  using Layout = DequantLayout<kType>;
  const uint8_t* group = panel + Layout::group_at(g);
  dequantize_vectors<kType, 0>(group, DequantScales<kType>(panel + Layout::block_at(g), group), to);
}
