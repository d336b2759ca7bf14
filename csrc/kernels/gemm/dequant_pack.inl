// Packs quantized weights into panels for AMX (dequant_layout.inl), and reads them back.

// One row's block, unpacked: codes, and for K types the groups' scales.
struct DequantBlock {
  uint16_t scale = 0, minimum = 0;  // halves
  uint8_t pairs[8][2];
  uint8_t codes[kBlock];
};

template <WeightType kType>
static inline void read_dequant_block(WeightType from, const uint8_t* row, int64_t block,
                                   DequantBlock& out) {
  if constexpr (DequantLayout<kType>::kByBlock) {
    KBlock found;
    read_k_block(kType, row + block * k_block_bytes(kType), found);
    out.scale = found.d;
    out.minimum = found.dmin;
    __builtin_memcpy(out.pairs, found.scales, sizeof out.pairs);
    __builtin_memcpy(out.codes, found.q, kBlock);
    return;
  }
  if constexpr (is_legacy_type(kType)) {
    LegacyBlock found;
    read_legacy_block(kType, row + block * legacy_block_bytes(kType), found);
    out.scale = found.d;
    out.minimum = found.m;
    __builtin_memcpy(out.codes, found.q, kGroup);
    return;
  }
  float x[kGroup];
  uint8_t nibbles[16];
  if (from != kType) to_float(from, row + source_bytes(from, block * kGroup), kGroup, x);
  if constexpr (DequantLayout<kType>::kBytes) {
    if (from == kType) {
      out.scale = load_as<uint16_t>(row + block * 34);
      __builtin_memcpy(out.codes, row + block * 34 + 2, kGroup);
    } else {
      out.scale = quantize_q8(x, reinterpret_cast<int8_t*>(out.codes));
    }
    return;
  }
  if (from == kType) {
    out.scale = load_as<uint16_t>(row + block * 18);
    __builtin_memcpy(nibbles, row + block * 18 + 2, 16);
  } else {
    out.scale = quantize_q4(x, nibbles);
  }
  for (int i = 0; i < 16; ++i) {
    out.codes[i] = nibbles[i] & 15;
    out.codes[16 + i] = nibbles[i] >> 4;
  }
}

// Only the scale and minimum of a block.
template <WeightType kType>
static inline void read_dequant_scales(WeightType from, const uint8_t* row, int64_t block,
                                    DequantBlock& out) {
  if (from != kType) return read_dequant_block<kType>(from, row, block, out);
  if constexpr (kType == WeightType::Q6_K) {
    out.scale = load_as<uint16_t>(row + block * 210 + 208);
  } else if constexpr (DequantLayout<kType>::kByBlock) {
    out.scale = load_as<uint16_t>(row + block * k_block_bytes(kType));
    out.minimum = load_as<uint16_t>(row + block * k_block_bytes(kType) + 2);
  } else {
    const uint8_t* from_row = row + source_bytes(kType, block * kGroup);
    out.scale = load_as<uint16_t>(from_row);
    if (DequantLayout<kType>::kMins) out.minimum = load_as<uint16_t>(from_row + 2);
  }
}

// 2^exponent, within the range of a float.
static inline float power_of_two(int exponent) { return bits_float(uint32_t(exponent + 127) << 23); }

// Factor of a row's scales that moves its largest possible weight into [2^14, 2^15). Zero if all scales
// are zero, NaN if one is not finite.
template <WeightType kType>
static inline float row_scale_factor(WeightType from, const uint8_t* row, int64_t blocks) {
  using Layout = DequantLayout<kType>;
  float most = 0.0f;
  for (int64_t b = 0; b < blocks; ++b) {
    DequantBlock block;
    read_dequant_scales<kType>(from, row, b, block);
    const float size = __builtin_fabsf(half_to_float(block.scale)) * Layout::kMaxMagnitude +
                       __builtin_fabsf(half_to_float(block.minimum)) * Layout::kMaxMinimum;
    if (!(size < kInfinity)) return bits_float(0x7fc00000u);
    most = size > most ? size : most;
  }
  if (most == 0.0f) return 0.0f;
  return power_of_two(14 + 127 - int(float_bits(most) >> 23));
}

template <WeightType kType>
static inline void pack_dequant_group(const uint8_t* codes, int64_t j, uint8_t* group) {
  using Layout = DequantLayout<kType>;
  const int64_t half = j / 16, lane = j % 16 * 4;  // byte offset in a vector
  if constexpr (Layout::kBytes) {
    for (int t = 0; t < 16; ++t)
      __builtin_memcpy(group + Layout::kCodes + (2 * t + half) * 32 + lane / 2, codes + 2 * t, 2);
    return;
  }
  const auto add = [&](int64_t at, unsigned even, unsigned odd) {
    uint8_t* word = group + at + lane;
    store_as(word, load_as<uint32_t>(word) | even | odd << 16);
  };
  for (int x = 0; x < 8; ++x) {
    const auto pair = [&](int b) {
      return ((codes[4 * x + b] & 15u) | (codes[4 * x + 2 + b] & 15u) << 8) << (4 * half);
    };
    add(Layout::kCodes + x * 64, pair(0), pair(1));
  }
  if constexpr (Layout::kHighBits > 0) {
    constexpr int kSteps = 8 / Layout::kHighBits;  // steps of two k per word
    for (int y = 0; y < 2 * Layout::kHighBits; ++y) {
      unsigned words[2] = {};
      for (int t = 0; t < kSteps; ++t) {
        for (int b = 0; b < 2; ++b)
          words[b] |= unsigned(codes[2 * (y * kSteps + t) + b] >> 4)
                      << (Layout::kHighBits * (2 * t + int(half)));
      }
      add(Layout::kHigh + y * 64, words[0], words[1]);
    }
  }
}

template <WeightType kType>
static void pack_dequant_rows(WeightType from, const uint8_t* first, int64_t row_bytes, int64_t rows,
                           int64_t k, uint8_t* panel) {
  using Layout = DequantLayout<kType>;
  const int64_t blocks = k / kGroup / Layout::kGroups;
  __builtin_memset(panel, 0, size_t(Layout::panel_bytes(k)));
  for (int64_t j = 0; j < rows; ++j) {
    const uint8_t* row = first + j * row_bytes;
    const float factor = row_scale_factor<kType>(from, row, blocks);
    // The inverse of the factor, times the 2^16 omitted by the conversion to bf16.
    store_as(panel + 4 * j, factor == 0.0f ? 0.0f : 65536.0f / factor);
    const auto scaled = [&](uint16_t half, float by) {
      return float_to_half(half_to_float(half) * by);
    };
    for (int64_t b = 0; b < blocks; ++b) {
      DequantBlock block;
      read_dequant_block<kType>(from, row, b, block);
      uint8_t* head = panel + kDequantHead + b * Layout::kBlockBytes;
      store_as(head + 2 * j, scaled(block.scale, factor));
      if (Layout::kMins)
        store_as(head + 64 + 2 * j, scaled(block.minimum, Layout::kByBlock ? -factor : factor));
      for (int64_t g = 0; g < Layout::kGroups; ++g) {
        uint8_t* group = head + Layout::kBlockHead + g * Layout::kGroupBytes;
        if (Layout::kByBlock) {
          group[j] = block.pairs[g][0];
          group[kPanel + j] = block.pairs[g][1];
        }
        pack_dequant_group<kType>(block.codes + g * kGroup, j, group);
      }
    }
  }
}

// Code of row j of a group for k = i.
template <WeightType kType>
static inline unsigned code_at(const uint8_t* group, int64_t j, int64_t i) {
  using Layout = DequantLayout<kType>;
  const int64_t v = i / 2 * 2 + j / 16, lane = j % 16 * 2 + i % 2;
  if (Layout::kBytes) return group[Layout::kCodes + v * 32 + lane];
  const auto word = [&](int64_t at) { return unsigned(load_as<uint16_t>(group + at + lane * 2)); };
  unsigned code = word(Layout::kCodes + v / 4 * 64) >> (v % 4 * 4) & 15;
  if constexpr (Layout::kHighBits > 0) {
    constexpr int kVecs = 16 / Layout::kHighBits;  // per word
    code |= (word(Layout::kHigh + v / kVecs * 64) >> (v % kVecs * Layout::kHighBits) &
             ((1u << Layout::kHighBits) - 1)) << 4;
  }
  return code;
}

// Dequantizes row j of a panel.
template <WeightType kType>
static void unpack_dequant(const uint8_t* panel, int64_t j, int64_t k, float* out) {
  using Layout = DequantLayout<kType>;
  const float factor = load_as<float>(panel + 4 * j) / 65536.0f;
  for (int64_t g = 0; g < k / kGroup; ++g) {
    const uint8_t* head = panel + Layout::block_at(g);
    const uint8_t* group = panel + Layout::group_at(g);
    const float scale = half_to_float(load_as<uint16_t>(head + 2 * j)) * factor;
    for (int64_t i = 0; i < kGroup; ++i) {
      const int code = int(code_at<kType>(group, j, i));
      if constexpr (Layout::kBytes) {
        out[g * kGroup + i] = scale * float(int8_t(code));
      } else if constexpr (kType == WeightType::Q6_K) {
        const int8_t by = int8_t(group[(i / 16) * kPanel + j]);
        out[g * kGroup + i] = scale * float(by) * float(code - Layout::kZero);
      } else if constexpr (Layout::kMins && !Layout::kByBlock) {
        out[g * kGroup + i] = scale * float(code) + half_to_float(load_as<uint16_t>(head + 64 + 2 * j)) * factor;
      } else if constexpr (Layout::kMins) {
        const float minimum = half_to_float(load_as<uint16_t>(head + 64 + 2 * j)) * -factor;
        out[g * kGroup + i] =
            scale * float(group[j]) * float(code) - minimum * float(group[kPanel + j]);
      } else {
        out[g * kGroup + i] = scale * float(Layout::code_value(code));
      }
    }
  }
}

static void pack_dequant_panel(WeightType from, WeightType to, const uint8_t* first, int64_t row_bytes,
                            int64_t rows, int64_t k, uint8_t* panel) {
  with_dequant_type(to, [&]<WeightType kType>() {
    pack_dequant_rows<kType>(from, first, row_bytes, rows, k, panel);
  });
}
static void unpack_dequant_row(WeightType type, const uint8_t* panel, int64_t j, int64_t k,
                            float* out) {
  with_dequant_type(type, [&]<WeightType kType>() { unpack_dequant<kType>(panel, j, k, out); });
}
