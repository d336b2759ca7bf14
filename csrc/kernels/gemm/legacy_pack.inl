// Panels of Q4_1, Q5_0 and Q5_1, group by group: 32 half scales, 32 half m (where the type has one), the
// fifth bits and the nibbles as in Q5_K (kpack.inl). 5, 5.5 and 6 bits per weight.

template <WeightType kType>
struct LegacyLayout {
  static constexpr bool kMins = kType != WeightType::Q5_0;
  static constexpr int kHighBits = kType == WeightType::Q4_1 ? 0 : 1;
  static constexpr int64_t kHigh = kMins ? 128 : 64, kNibbles = kHigh + kHighBits * 128;
  static constexpr int64_t kGroupBytes = kNibbles + 512;
};

template <class Of>
static inline auto with_legacy_type(WeightType type, Of of) {
  switch (type) {
    case WeightType::Q4_1: return of.template operator()<WeightType::Q4_1>();
    case WeightType::Q5_0: return of.template operator()<WeightType::Q5_0>();
    default: return of.template operator()<WeightType::Q5_1>();
  }
}

static inline int64_t legacy_panel_bytes(WeightType type, int64_t k) {
  return with_legacy_type(type, [&]<WeightType kType>() {
    return k / kGroup * LegacyLayout<kType>::kGroupBytes;
  });
}

static void pack_legacy_panel(WeightType type, const uint8_t* source, int64_t row_bytes, int64_t rows,
                              int64_t k, uint8_t* panel) {
  with_legacy_type(type, [&]<WeightType kType>() {
    using Layout = LegacyLayout<kType>;
    for (int64_t g = 0; g < k / kGroup; ++g) {
      uint8_t* group = panel + g * Layout::kGroupBytes;
      // Padding rows have zero scales and m.
      if (rows < kPanel) __builtin_memset(group, 0, size_t(Layout::kGroupBytes));
      for (int64_t j = 0; j < rows; ++j) {
        LegacyBlock block;
        read_legacy_block(kType, source + j * row_bytes + g * legacy_block_bytes(kType), block);
        store_as(group + 2 * j, block.d);
        if (Layout::kMins) store_as(group + 64 + 2 * j, block.m);
        store_codes<Layout>(block.q, j, group);
      }
    }
  });
}

static void unpack_legacy_row(WeightType type, const uint8_t* panel, int64_t j, int64_t k, float* out) {
  with_legacy_type(type, [&]<WeightType kType>() {
    using Layout = LegacyLayout<kType>;
    for (int64_t g = 0; g < k / kGroup; ++g) {
      const uint8_t* group = panel + g * Layout::kGroupBytes;
      LegacyBlock block;
      block.d = load_as<uint16_t>(group + 2 * j);
      block.m = Layout::kMins ? load_as<uint16_t>(group + 64 + 2 * j) : uint16_t(0);
      for (int64_t i = 0; i < kGroup; ++i) {
        block.q[i] = uint8_t(stored_code<Layout>(group, j, i));
        *out++ = block.value(kType, i);
      }
    }
  });
}
