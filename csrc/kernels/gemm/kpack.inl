// Panels of the K types, block by block:
//   group   32 scale bytes, then 32 minimum bytes (Q6_K: scales of k 0..15, then of 16..31);
//           the bits above the nibbles, rows of 32 x 4 bytes: Q5_K has bit t of byte b for k = 4t + b;
//           Q6_K has two such rows, the first with bits 2t and 2t + 1 of byte b for k = 4t + b, the
//           second for k = 16 + 4t + b; then nibbles as in Q4_0
//   footer  32 half d, and 32 half dmin for types with minima
// 4.625, 5.625 and 6.5625 bits per weight. The order is that of first use, so that one row reads a
// single stream that the hardware prefetches: with the high bits after the nibbles and d before the
// groups, Q5_K and Q6_K reached 0.7 times the rate.

template <WeightType kType>
struct KLayout {
  static constexpr bool kMins = kType != WeightType::Q6_K;
  static constexpr int kHighBits =
      kType == WeightType::Q4_K ? 0 : kType == WeightType::Q5_K ? 1 : 2;
  static constexpr int64_t kFooterBytes = kMins ? 128 : 64;
  static constexpr int64_t kHigh = 64, kNibbles = 64 + kHighBits * 128;  // offsets within a group
  static constexpr int64_t kGroupBytes = kNibbles + 512;
  static constexpr int64_t kFooter = kBlock / kGroup * kGroupBytes;  // offset within a block
  static constexpr int64_t kBlockBytes = kFooter + kFooterBytes;

  static constexpr int64_t group_offset(int64_t g) {
    return g / 8 * kBlockBytes + g % 8 * kGroupBytes;
  }
};

// Stores the codes of one row's group: nibbles, and the bits above them.
template <class Layout>
static inline void store_codes(const uint8_t* q, int64_t j, uint8_t* group) {
  const auto quad = [&](int t) { return load_as<uint32_t>(q + 4 * t); };
  for (int part = 0; part < 4; ++part) {
    const uint32_t low = quad(part) & 0x0f0f0f0fu, high = quad(4 + part) & 0x0f0f0f0fu;
    store_as(group + Layout::kNibbles + part * 128 + j * 4, low | high << 4);
  }
  constexpr int kBits = Layout::kHighBits, kFields = kBits ? 8 / kBits : 0;
  constexpr uint32_t kMask = kBits == 2 ? 0x03030303u : 0x01010101u;
  for (int row = 0; row < kBits; ++row) {
    uint32_t bits = 0;
    for (int field = 0; field < kFields; ++field)
      bits |= (quad(row * kFields + field) >> 4 & kMask) << (kBits * field);
    store_as(group + Layout::kHigh + row * 128 + j * 4, bits);
  }
}

// Reads one of them.
template <class Layout>
static inline unsigned stored_code(const uint8_t* group, int64_t j, int64_t i) {
  constexpr int kBits = Layout::kHighBits, kFields = kBits ? 8 / kBits : 1;
  const int64_t quad = i / 4, byte = j * 4 + i % 4;
  const uint8_t pair = group[Layout::kNibbles + quad % 4 * 128 + byte];
  unsigned q = quad < 4 ? pair & 15 : pair >> 4;
  if constexpr (kBits > 0) {
    const uint8_t high = group[Layout::kHigh + quad / kFields * 128 + byte];
    q |= unsigned(high >> (quad % kFields * kBits) & ((1 << kBits) - 1)) << 4;
  }
  return q;
}

// Packs one row's group.
template <WeightType kType>
static inline void pack_k_group(const KBlock& block, int64_t g, int64_t j, uint8_t* group) {
  group[j] = block.scales[g][0];
  group[32 + j] = block.scales[g][1];
  store_codes<KLayout<kType>>(block.q + g * kGroup, j, group);
}

template <WeightType kType>
static void pack_k_rows(const uint8_t* source, int64_t row_bytes, int64_t rows, int64_t k,
                        uint8_t* panel) {
  using Layout = KLayout<kType>;
  for (int64_t b = 0; b < k / kBlock; ++b) {
    uint8_t* to = panel + b * Layout::kBlockBytes;
    // Padding rows have zero scales, so their other fields do not matter.
    if (rows < kPanel) __builtin_memset(to, 0, size_t(Layout::kBlockBytes));
    for (int64_t j = 0; j < rows; ++j) {
      KBlock block;
      read_k_block(kType, source + j * row_bytes + b * k_block_bytes(kType), block);
      uint8_t* footer = to + Layout::kFooter;
      store_as(footer + 2 * j, block.d);
      if (Layout::kMins) store_as(footer + 64 + 2 * j, block.dmin);
      for (int64_t g = 0; g < 8; ++g)
        pack_k_group<kType>(block, g, j, to + Layout::group_offset(g));
    }
  }
}

// Unpacks one row of a panel, block by block.
template <WeightType kType>
static void unpack_k(const uint8_t* panel, int64_t j, int64_t k, float* out) {
  using Layout = KLayout<kType>;
  for (int64_t b = 0; b < k / kBlock; ++b, panel += Layout::kBlockBytes) {
    KBlock block;
    const uint8_t* footer = panel + Layout::kFooter;
    block.d = load_as<uint16_t>(footer + 2 * j);
    block.dmin = Layout::kMins ? load_as<uint16_t>(footer + 64 + 2 * j) : uint16_t(0);
    for (int64_t i = 0; i < kBlock; ++i) {
      const uint8_t* group = panel + Layout::group_offset(i / kGroup);
      block.q[i] = uint8_t(stored_code<Layout>(group, j, i % kGroup));
      block.scales[i / kGroup][0] = group[j];
      block.scales[i / kGroup][1] = group[32 + j];
    }
    for (int64_t i = 0; i < kBlock; ++i) *out++ = block.value(kType, i);
  }
}

static inline int64_t k_panel_bytes(WeightType type, int64_t k) {
  return k / kBlock * (type == WeightType::Q4_K   ? KLayout<WeightType::Q4_K>::kBlockBytes
                       : type == WeightType::Q5_K ? KLayout<WeightType::Q5_K>::kBlockBytes
                                                  : KLayout<WeightType::Q6_K>::kBlockBytes);
}

static void pack_k_panel(WeightType type, const uint8_t* source, int64_t row_bytes, int64_t rows,
                         int64_t k, uint8_t* panel) {
  auto* pack = type == WeightType::Q4_K   ? &pack_k_rows<WeightType::Q4_K>
               : type == WeightType::Q5_K ? &pack_k_rows<WeightType::Q5_K>
                                          : &pack_k_rows<WeightType::Q6_K>;
  pack(source, row_bytes, rows, k, panel);
}

static void unpack_k_row(WeightType type, const uint8_t* panel, int64_t j, int64_t k, float* out) {
  auto* unpack = type == WeightType::Q4_K   ? &unpack_k<WeightType::Q4_K>
                 : type == WeightType::Q5_K ? &unpack_k<WeightType::Q5_K>
                                            : &unpack_k<WeightType::Q6_K>;
  unpack(panel, j, k, out);
}
