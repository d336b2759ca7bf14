// Matrix products by AMX tiles. A tile multiplies up to 16 activation rows with 16 output rows of a
// panel, whose layout is a tile's already (32 rows side by side, depth after depth).
//
// int8: the sums over a group of 32 are exact, and what follows (their scales) is the arithmetic of
// QuantizedWeights and KWeights itself, so both give the same bits and few rows may take either.
// bf16: the products are summed by the tile unit, so every product goes through it, one row too.

constexpr int64_t kTileRows = 16;
constexpr int64_t kLeastTileRows = 6;  // of int8: fewer go by vectors

// --- int8 ---

template <int kHalves>
static inline void configure_i8(int64_t rows) {
  TileShapes shapes;
  for (int half = 0; half < 2; ++half) {
    shapes.set(half, rows, 64);                      // sums of both columns
    shapes.set(2 + half, rows, 64);                  // of the second half
    shapes.set(4 + half, kGroup / 4 / kHalves, 64);  // weights
    shapes.set(6 + half, rows, kGroup / kHalves);    // activations
  }
  tiles_configure(shapes);
}

// Tiles multiply signed bytes, four of k per 32-bit lane. Q8_0's lie so in the panel, fewer bits
// are spread.
template <class Weights>
constexpr bool kSpread = true;
template <>
constexpr bool kSpread<QuantizedWeights<false>> = false;

constexpr int64_t kSpreadBytes = kGroup * kPanel;  // of a group

template <class Weights>
static TIDEMILL_INLINE const uint8_t* tile_bytes(Weights, const TileInput& in, int64_t g) {
  return Weights::group_at(in.panel, g) + 64;
}

static TIDEMILL_INLINE void spread(QuantizedWeights<false>, const uint8_t*, uint8_t*) {}
static TIDEMILL_INLINE void spread(QuantizedWeights<true>, const uint8_t* group, uint8_t* bytes) {
  const Vi eight = iset(0x08080808);
  TIDEMILL_UNROLL
  for (int part = 0; part < 4; ++part) {
    TIDEMILL_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Vi w = iload(group + 64 + part * kPanel * 4 + half * 64);
      istore(bytes + part * kPanel * 4 + half * 64, isub_bytes(nibble_low(w), eight));
      istore(bytes + (4 + part) * kPanel * 4 + half * 64, isub_bytes(nibble_high(w), eight));
    }
  }
}
template <WeightType kType, int T>
static TIDEMILL_INLINE void spread_quads(const uint8_t* group, uint8_t* bytes) {
  TIDEMILL_UNROLL
  for (int half = 0; half < 2; ++half) {
    Vi w = KWeights<kType>::template quad<T>(group, half * 64);
    if (KWeights<kType>::kHalves == 2) w = isub_bytes(w, iset(0x20202020));
    istore(bytes + T * kPanel * 4 + half * 64, w);
  }
  if constexpr (T < 7) spread_quads<kType, T + 1>(group, bytes);
}
template <WeightType kType>
static TIDEMILL_INLINE void spread(KWeights<kType>, const uint8_t* group, uint8_t* bytes) {
  spread_quads<kType, 0>(group, bytes);
}

// A panel whose groups are spread once for all tiles of rows: tiles get the same bytes as without,
// so the same bits.
template <class Weights>
struct SpreadWeights : Weights {
  static void fill(const uint8_t* panel, int64_t groups, uint8_t* to) {
    for (int64_t g = 0; g < groups; ++g)
      spread(Weights{}, Weights::group_at(panel, g), to + g * kSpreadBytes);
  }
};
template <class Weights>
constexpr bool kSpread<SpreadWeights<Weights>> = false;

template <class Weights>
static TIDEMILL_INLINE const uint8_t* tile_bytes(SpreadWeights<Weights>, const TileInput& in,
                                                 int64_t g) {
  return in.spread + g * kSpreadBytes;
}

// R rows of a panel, its 32 columns at once. A tile reads what was just stored only when the stores
// have left the pipeline, and waiting for that costs more than all else: so weights are spread
// kAhead groups before they are multiplied, and the products of the next group run while this
// one's are scaled.
template <class Weights, int R>
struct TileRows {
  static constexpr int kHalves = Weights::kHalves;
  static constexpr int64_t kAhead = 4, kTile = R * kLanes;

  const TileInput& in;
  const int64_t groups;
  alignas(64) int32_t dots[2][kHalves * 2 * kTile];
  alignas(64) uint8_t bytes[kSpread<Weights> ? kAhead * kSpreadBytes : 64];

  explicit TileRows(const TileInput& input) : in(input), groups(input.k / kGroup) {}

  TIDEMILL_INLINE void prepare(int64_t g) {
    if constexpr (kSpread<Weights>) {
      if (g < groups)
        spread(Weights{}, Weights::group_at(in.panel, g), bytes + g % kAhead * kSpreadBytes);
    }
  }

  // The integer sums of group g, [half][column][row][lane].
  TIDEMILL_INLINE void multiply(int64_t g, int32_t* to) {
    const uint8_t* weights = kSpread<Weights> ? bytes + g % kAhead * kSpreadBytes
                                              : tile_bytes(Weights{}, in, g);
    const uint8_t* act = Weights::act_at(in.act, g);
    tile_load<6>(act, in.act_stride);
    tile_load<4>(weights, kPanel * 4);
    tile_zero<0>();
    tile_dot_i8<0, 6, 4>();
    tile_load<5>(weights + 64, kPanel * 4);
    tile_zero<1>();
    tile_dot_i8<1, 6, 5>();
    if constexpr (kHalves == 2) {
      tile_load<7>(act + kGroup / 2, in.act_stride);
      tile_load<4>(weights + kSpreadBytes / 2, kPanel * 4);
      tile_zero<2>();
      tile_dot_i8<2, 7, 4>();
      tile_load<5>(weights + kSpreadBytes / 2 + 64, kPanel * 4);
      tile_zero<3>();
      tile_dot_i8<3, 7, 5>();
    }
    tile_store<0>(to, kLanes * 4);
    tile_store<1>(to + kTile, kLanes * 4);
    if constexpr (kHalves == 2) {
      tile_store<2>(to + 2 * kTile, kLanes * 4);
      tile_store<3>(to + 3 * kTile, kLanes * 4);
    }
  }

  TIDEMILL_INLINE void run(int64_t valid, const float* bias, float* out, int64_t ldo) {
    Vf sum[R][2];
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = vzero();
    for (int64_t g = 0; g < kAhead - 1; ++g) prepare(g);
    multiply(0, dots[0]);
    typename Weights::template Scaled<R, 2> scaled;
    for (int64_t g = 0; g < groups; ++g) {
      prepare(g + kAhead - 1);
      if (g + 1 < groups) multiply(g + 1, dots[(g + 1) & 1]);
      Weights::prefetch_group(in, g);
      if (g % Weights::kScaledGroups == 0) scaled.open();
      scaled.load(in, g);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < 2; ++v) {
          const int32_t* at = dots[g & 1] + v * kTile + r * kLanes;
          Vi dot[kHalves];
          for (int half = 0; half < kHalves; ++half) dot[half] = iload(at + half * 2 * kTile);
          scaled.add(in, g, r, v, dot, sum);
        }
      }
      if ((g + 1) % Weights::kScaledGroups == 0) scaled.close(in, g / Weights::kScaledGroups, sum);
    }
    TIDEMILL_UNROLL
    for (int v = 0; v < 2; ++v) {
      const int64_t lane = v * kLanes;
      const Vf b = bias ? vload_n(bias + lane, valid - lane) : vzero();
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r)
        vstore_n(out + r * ldo + lane, bias ? vadd(sum[r][v], b) : sum[r][v], valid - lane);
    }
  }
};

template <class Weights, int R>
static void tile_rows_i8(const TileInput& in, int64_t valid, const float* bias, float* out,
                         int64_t ldo) {
  TileRows<Weights, R>(in).run(valid, bias, out, ldo);
}

template <class Weights, int R>
static inline void dispatch_tile_i8(int64_t rows, const TileInput& in, int64_t valid,
                                    const float* bias, float* out, int64_t ldo) {
  if (rows == R) {
    tile_rows_i8<Weights, R>(in, valid, bias, out, ldo);
  } else if constexpr (R > kLeastTileRows) {
    dispatch_tile_i8<Weights, R - 1>(rows, in, valid, bias, out, ldo);
  }
}

// What tiles read beside a panel: nothing.
struct PanelItself {
  const uint8_t* take(const uint8_t*, int64_t) { return nullptr; }
};

template <class Weights>
struct TilesI8 {
  using Source = PanelItself;
  static constexpr int64_t kRows = kTileRows;
  static constexpr int64_t kBlockBytes = Weights::kBlockBytes;
  static inline void configure(int64_t rows) { configure_i8<Weights::kHalves>(rows); }
  static inline void rows(int64_t count, const TileInput& in, int64_t valid, const float* bias,
                          float* out, int64_t ldo) {
    dispatch_tile_i8<Weights, kTileRows>(count, in, valid, bias, out, ldo);
  }
};

// The same where enough rows meet a panel of fewer bits than eight. Measured, weights in caches:
// from four tiles of rows on it gains, at 448 rows Q4_0 1.2 times, Q4_K 1.1 and Q6_K 1.3; with two
// it loses.
template <class Weights>
struct SpreadTilesI8 : TilesI8<SpreadWeights<Weights>> {
  static constexpr int64_t kLeastRows = 3 * kTileRows + 1;
  static constexpr int64_t kMostGroups = 256;  // 256 KiB of the L2 cache, and of the stack

  struct Source {
    alignas(64) uint8_t bytes[kMostGroups * kSpreadBytes];

    const uint8_t* take(const uint8_t* panel, int64_t k) {
      SpreadWeights<Weights>::fill(panel, k / kGroup, bytes);
      return bytes;
    }
  };

  static constexpr bool fits(int64_t m_rows, int64_t k) {
    return m_rows >= kLeastRows && k <= kMostGroups * kGroup;
  }
};

// --- products that are summed in a tile over all of k ---

// bf16: what the tile unit sums is the sum.
struct Bf16Products {
  static constexpr int64_t kPanelHead = 0, kActHead = 0, kDepth = 32;

  template <int C, int A, int B>
  static TIDEMILL_INLINE void dot() {
    tile_dot_bf16<C, A, B>();
  }
  // Sums of row r from `lane` on.
  static TIDEMILL_INLINE Vf sum(const TileInput&, const float* sums, int64_t, int64_t) {
    return vload(sums);
  }
};

// int8 with a scale per row on both sides: ChannelWeights' own arithmetic after exact sums.
struct ChannelProducts {
  static constexpr int64_t kPanelHead = kChannelScales, kActHead = offsetof(ActRow, q),
                           kDepth = kTileDepthI8;

  template <int C, int A, int B>
  static TIDEMILL_INLINE void dot() {
    tile_dot_i8<C, A, B>();
  }
  static TIDEMILL_INLINE Vf sum(const TileInput& in, const float* sums, int64_t r, int64_t lane) {
    return channel_value(in, r, lane, iload(sums));
  }
};

template <class Products>
struct DeepTiles {
  using Source = PanelItself;
  static constexpr int64_t kRows = 2 * kTileRows;
  static constexpr int64_t kBlockBytes = 16 * kPanel * 4;  // one tile's depth

  static inline void configure(int64_t rows) {
    const int64_t upper = min64(rows, kTileRows), lower = rows - upper;
    TileShapes shapes;
    for (int column = 0; column < 2; ++column) {
      shapes.set(column, upper, 64);          // sums of the upper rows
      shapes.set(2 + column, lower, 64);      // and of the lower ones
      shapes.set(6 + column, kTileRows, 64);  // weights
    }
    shapes.set(4, upper, 64);  // activations
    shapes.set(5, lower, 64);
    if (lower == 0) shapes.bytes[2] = shapes.bytes[3] = shapes.bytes[5] = 0;
    tiles_configure(shapes);
  }

  template <bool kLower>
  static inline void multiply(const TileInput& in, float* sums) {
    const int64_t blocks = (in.k + Products::kDepth - 1) / Products::kDepth;
    tile_zero<0>();
    tile_zero<1>();
    if (kLower) tile_zero<2>(), tile_zero<3>();
    const uint8_t* upper = in.act + Products::kActHead;
    const uint8_t* lower = upper + kTileRows * in.act_stride;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = Products::kPanelHead + b * kBlockBytes;
      prefetch_block(in, at);
      tile_load<6>(in.panel + at, kPanel * 4);
      tile_load<7>(in.panel + at + 64, kPanel * 4);
      tile_load<4>(upper + b * 64, in.act_stride);
      Products::template dot<0, 4, 6>();
      Products::template dot<1, 4, 7>();
      if (kLower) {
        tile_load<5>(lower + b * 64, in.act_stride);
        Products::template dot<2, 5, 6>();
        Products::template dot<3, 5, 7>();
      }
    }
    tile_store<0>(sums, kPanel * 4);
    tile_store<1>(sums + kLanes, kPanel * 4);
    if (kLower) {
      tile_store<2>(sums + kTileRows * kPanel, kPanel * 4);
      tile_store<3>(sums + kTileRows * kPanel + kLanes, kPanel * 4);
    }
  }

  static inline void rows(int64_t count, const TileInput& in, int64_t valid, const float* bias,
                          float* out, int64_t ldo) {
    alignas(64) float sums[kRows * kPanel];
    if (count > kTileRows) {
      multiply<true>(in, sums);
    } else {
      multiply<false>(in, sums);
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t lane = 0; lane < min64(kPanel, valid); lane += kLanes) {
        const Vf sum = Products::sum(in, sums + r * kPanel + lane, r, lane);
        vstore_n(out + r * ldo + lane, bias ? vadd(sum, vload_n(bias + lane, valid - lane)) : sum,
                 valid - lane);
      }
    }
  }
};

// As gemm_panels: panel after panel, the rows in tiles of nearly equal height.
template <class Tiles>
static void gemm_tiles(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride,
                       int64_t m_rows, int64_t p0, int64_t p1, const float* bias, float* out,
                       int64_t ldo, bool /*alone*/) {
  constexpr int64_t kLines = Tiles::kBlockBytes / 64;
  const int64_t tiles = (m_rows + Tiles::kRows - 1) / Tiles::kRows;
  typename Tiles::Source source;
  int64_t configured = 0;
  for (int64_t p = p0; p < p1; ++p) {
    const uint8_t* panel = w.data + p * w.panel_bytes;
    TileInput in{panel, source.take(panel, w.k), acts, act_stride, w.k, 0, nullptr, 0, 0};
    const int64_t n0 = p * kPanel;
    if (n0 + kPanel < w.n) in.next = panel + w.panel_bytes;
    int64_t m = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t rows = (m_rows - m + tiles - tile - 1) / (tiles - tile);
      if (rows != configured) Tiles::configure(configured = rows);
      in.act = acts + m * act_stride;
      in.line0 = tile * kLines / tiles;
      in.line1 = (tile + 1) * kLines / tiles;
      Tiles::rows(rows, in, w.n - n0, bias ? bias + n0 : nullptr, out + m * ldo + n0, ldo);
      m += rows;
    }
  }
  tiles_release();
}

// By how many rows on tiles are faster than vectors, measured: what a tile saves is spent on
// storing its sums, once per group of 32, and on spreading weights of fewer bits than eight.
// nullptr: by vectors.
using GemmTiles = decltype(&gemm_tiles<DeepTiles<Bf16Products>>);

template <class Weights>
static GemmTiles spread_tiles_i8(int64_t m_rows, int64_t k) {
  if (m_rows < 12) return nullptr;
  return SpreadTilesI8<Weights>::fits(m_rows, k) ? &gemm_tiles<SpreadTilesI8<Weights>>
                                                 : &gemm_tiles<TilesI8<Weights>>;
}

static GemmTiles tiles_i8(WeightType type, int64_t m_rows, int64_t k) {
  switch (type) {
    case WeightType::Q8_0:
      return m_rows >= kLeastTileRows ? &gemm_tiles<TilesI8<QuantizedWeights<false>>> : nullptr;
    case WeightType::Q4_0:
      return spread_tiles_i8<QuantizedWeights<true>>(m_rows, k);
    case WeightType::Q4_K:
      return spread_tiles_i8<KWeights<WeightType::Q4_K>>(m_rows, k);
    case WeightType::Q5_K:
      return spread_tiles_i8<KWeights<WeightType::Q5_K>>(m_rows, k);
    case WeightType::Q6_K:
      return spread_tiles_i8<KWeights<WeightType::Q6_K>>(m_rows, k);
    case WeightType::I8:
      return m_rows >= kLeastTileRows ? &gemm_tiles<DeepTiles<ChannelProducts>> : nullptr;
    default:
      return nullptr;
  }
}
