// int8 weights with one scale per output row, int8 activations with one scale per row. The sum over all
// of k is an exact integer whatever the order, and only the result is rounded, once. (Exact in 32 bits
// up to k = 133,000; offsets cancel modulo 2^32.)
//   panel        32 float scales; then per kDotBytes of k: 32 rows x kDotBytes, padded to a tile's depth
//   activations  ActRow; then k values as written by round_act_q8, zero-padded to a tile's depth

constexpr int64_t kTileDepthI8 = 64;  // values of k that one tile product sums over
constexpr int64_t kChannelScales = kPanel * 4;

struct ActRow {
  float scale;
  int32_t correction_q8;  // initial value of the sums (round_act_q8)
  uint8_t unused[56];
  uint8_t q[64];  // continues past the struct
};
static_assert(offsetof(ActRow, q) == 64, "layout shared by pack_act and gemm");

static inline int64_t channel_panel_bytes(int64_t k) {
  return kChannelScales + round_up(k, kTileDepthI8) * kPanel;
}

static inline int64_t channel_act_bytes(int64_t k) {
  return int64_t(offsetof(ActRow, q)) + round_up(k, kTileDepthI8) * kActBytesQ8;
}

static inline void pack_act_channel(const float* x, int64_t k, uint8_t* to) {
  ActRow* out = reinterpret_cast<ActRow*>(to);
  Vf largest = vzero();
  for (int64_t i = 0; i < k; i += kLanes) largest = vmax(largest, vabs(vload_n(x + i, k - i)));
  const float bound = vreduce_max(largest);
  const Vf inverse = vset(bound > 0.0f ? 127.0f / bound : 0.0f);
  Vi correction = iset(0);
  for (int64_t from = 0; from < round_up(k, kTileDepthI8); from += kGroup) {
    const auto load = [&](int j) {
      const int64_t i = from + j;
      return i < k ? vload_n(x + i, k - i) : vzero();
    };
    correction = iadd(correction, round_act_q8(load, inverse, out->q + from * kActBytesQ8));
  }
  out->scale = bound / 127.0f;
  out->correction_q8 = kStartQ8 * ireduce_add(correction);
}

// One row of `from` as int8, rounded half away from zero like Q8_0, and its scale.
static inline void pack_channel_row(WeightType from, const uint8_t* row, int64_t k, int64_t j,
                                    uint8_t* panel) {
  float scale, x[kGroup];
  int8_t q[kGroup];
  const auto values = [&](int64_t k0) {
    to_float(from, row + source_bytes(from, k0), min64(kGroup, k - k0), x);
  };
  float largest = 0.0f;
  if (from == WeightType::I8) {
    scale = load_as<float>(row);
  } else {
    for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
      values(k0);
      for (int64_t i = 0; i < min64(kGroup, k - k0); ++i) {
        const float a = __builtin_fabsf(x[i]);
        largest = a > largest ? a : largest;
      }
    }
    scale = largest / 127.0f;
  }
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  store_as(panel + 4 * j, scale);
  uint8_t* bytes = panel + kChannelScales;
  for (int64_t k0 = 0; k0 < k; k0 += kGroup) {
    const int64_t count = min64(kGroup, k - k0);
    if (from == WeightType::I8) {
      __builtin_memcpy(q, row + 4 + k0, size_t(count));
    } else {
      values(k0);
      for (int64_t i = 0; i < count; ++i) q[i] = round_half_away(x[i] * inverse);
    }
    for (int64_t i = 0; i < count; ++i) {
      bytes[byte_at(j, k0 + i)] = uint8_t(q[i]) ^ uint8_t(kQ8Flip);
    }
  }
}

static void pack_channel_panel(WeightType from, const uint8_t* first, int64_t row_bytes,
                               int64_t rows, int64_t k, uint8_t* panel) {
  __builtin_memset(panel, 0, size_t(kChannelScales));
  __builtin_memset(panel + kChannelScales, int(kQ8Flip & 0xff),
                   size_t(channel_panel_bytes(k) - kChannelScales));
  for (int64_t j = 0; j < rows; ++j) pack_channel_row(from, first + j * row_bytes, k, j, panel);
}

static void unpack_channel_row(const uint8_t* panel, int64_t j, int64_t k, float* out) {
  const float scale = load_as<float>(panel + 4 * j);
  const uint8_t* bytes = panel + kChannelScales;
  for (int64_t i = 0; i < k; ++i)
    out[i] = scale * float(int8_t(bytes[byte_at(j, i)] ^ uint8_t(kQ8Flip)));
}
