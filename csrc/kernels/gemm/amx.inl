// Matrix products with AMX tiles. A tile multiplies up to 16 activation rows with 16 output rows of a
// panel, whose layout is already that of a tile (32 rows side by side for each depth), and keeps the
// sums over all of k. Every product, even of one row, goes through the same tiles in the same order, so
// a row's bits do not depend on its neighbours. Sums stored between chunks of k are reloaded exactly.

#include "kernels/gemm/dequantize.inl"

constexpr int64_t kTileRows = 16, kPairRows = 2 * kTileRows;
constexpr int64_t kTileBlock = 16 * kPanel * 4;  // bytes of weights per tile depth
constexpr int64_t kMaxRows = 512;               // rows per pass, limited by the buffer for their sums
// Depths of weights per chunk: all rows are multiplied with a chunk before the next. 32 KiB, so that it
// stays in L1.
constexpr int64_t kChunkBlocks = 16;
constexpr int64_t kPageBytes = 4096;  // the hardware prefetcher stops at the end of a page

// --- panels ---

// bf16: the tile's sum is the result.
struct Bf16Panel {
  static constexpr bool kDequantized = false;
  static constexpr int64_t kHead = 0, kActHead = 0, kDepth = 32, kLines = kTileBlock / 64;

  static constexpr int64_t line_at(int64_t block) { return block * kTileBlock; }
  template <int C, int A, int B>
  static TIDEMILL_INLINE void dot() {
    tile_dot_bf16<C, A, B>();
  }
  // A row's result, starting at `lane`, from its sums and activations.
  static TIDEMILL_INLINE Vf sum(const uint8_t*, const uint8_t*, const float* sums, int64_t) {
    return vload(sums);
  }
};

// Quantized weights, dequantized to bf16 first.
template <WeightType kType>
struct DequantPanel : Bf16Panel {
  using Layout = DequantLayout<kType>;
  static constexpr bool kDequantized = true;
  static constexpr int64_t kLines = (Layout::kGroupBytes + 63) / 64;  // without block heads
  // Up to this many rows, dequantizing is interleaved with products (gemm_some).
  static constexpr int64_t kSomeRows = kLines >= 16 ? 128 : 64;

  static constexpr int64_t line_at(int64_t block) { return Layout::group_at(block); }
  static TIDEMILL_INLINE void dequantize(const uint8_t* panel, int64_t block, uint8_t* to) {
    dequantize_group<kType>(panel, block, to);
  }
  static TIDEMILL_INLINE Vf sum(const uint8_t* panel, const uint8_t*, const float* sums,
                                int64_t lane) {
    return vmul(vload(sums), vload(reinterpret_cast<const float*>(panel) + lane));
  }
};

// int8 with a scale per row on both sides: exact sums, then ChannelWeights' arithmetic.
struct ChannelPanel {
  static constexpr bool kDequantized = false;
  static constexpr int64_t kHead = kChannelScales, kActHead = offsetof(ActRow, q),
                           kDepth = kTileDepthI8, kLines = kTileBlock / 64;

  static constexpr int64_t line_at(int64_t block) { return kHead + block * kTileBlock; }
  template <int C, int A, int B>
  static TIDEMILL_INLINE void dot() {
    tile_dot_i8<C, A, B>();
  }
  static TIDEMILL_INLINE Vf sum(const uint8_t* panel, const uint8_t* act, const float* sums,
                                int64_t lane) {
    return channel_value(panel, act, lane, iload(sums));
  }
};

// --- tiles ---

// Tiles: 0 and 1 sums of the upper rows, 2 and 3 of the lower rows, 4 and 5 activations, 6 and 7
// weights.
static inline void configure_product(int64_t rows) {
  const int64_t upper = min64(rows, kTileRows), lower = rows - upper;
  TileShapes shapes;
  for (int column = 0; column < 2; ++column) {
    shapes.set(column, upper, 64);
    if (lower) shapes.set(2 + column, lower, 64);
    shapes.set(6 + column, kTileRows, 64);
  }
  shapes.set(4, upper, 64);
  if (lower) shapes.set(5, lower, 64);
  tiles_configure(shapes);
}

template <bool kLower>
static TIDEMILL_INLINE void clear_sums() {
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (kLower) tile_zero<2>(), tile_zero<3>();
}
template <bool kLower>
static TIDEMILL_INLINE void load_sums(const float* sums) {
  tile_load<0>(sums, kPanel * 4);
  tile_load<1>(sums + kLanes, kPanel * 4);
  if constexpr (kLower) {
    tile_load<2>(sums + kTileRows * kPanel, kPanel * 4);
    tile_load<3>(sums + kTileRows * kPanel + kLanes, kPanel * 4);
  }
}
template <bool kLower>
static TIDEMILL_INLINE void store_sums(float* sums) {
  tile_store<0>(sums, kPanel * 4);
  tile_store<1>(sums + kLanes, kPanel * 4);
  if constexpr (kLower) {
    tile_store<2>(sums + kTileRows * kPanel, kPanel * 4);
    tile_store<3>(sums + kTileRows * kPanel + kLanes, kPanel * 4);
  }
}

// One depth of weights times all rows of the tiles. Activations are loaded as streaming data: in L1
// they would displace the weights (a depth with 32 rows then takes 100 cycles instead of 73).
template <class Panel, bool kLower>
static TIDEMILL_INLINE void multiply_block(const uint8_t* weights, const uint8_t* act,
                                           int64_t act_stride) {
  tile_load<6>(weights, kPanel * 4);
  tile_load_streaming<4>(act, act_stride);
  Panel::template dot<0, 4, 6>();
  tile_load<7>(weights + 64, kPanel * 4);
  Panel::template dot<1, 4, 7>();
  if constexpr (kLower) {
    tile_load_streaming<5>(act + kTileRows * act_stride, act_stride);
    Panel::template dot<2, 5, 6>();
    Panel::template dot<3, 5, 7>();
  }
}

template <class Panel>
static inline int64_t tile_blocks(int64_t k) {
  return (k + Panel::kDepth - 1) / Panel::kDepth;
}

// Depths [from, to) of k for a pair of tiles, or the upper one alone; `weights(b)` is the address of
// depth b.
template <class Panel, bool kLower, class Weights>
static inline void multiply_chunk(Weights weights, const uint8_t* acts, int64_t act_stride,
                                  int64_t from, int64_t to, float* sums) {
  from == 0 ? clear_sums<kLower>() : load_sums<kLower>(sums);
  for (int64_t b = from; b < to; ++b)
    multiply_block<Panel, kLower>(weights(b), acts + Panel::kActHead + b * 64, act_stride);
  store_sums<kLower>(sums);
}

// From this many rows on, whole lines are written with non-temporal stores. Output rows are far apart
// and no longer cached; a normal store would first read each line, competing with the weights.
constexpr int64_t kMinStreamedRows = 4;

// Converts the tile sums of a panel's rows to results and stores them.
template <class Panel>
class Finish {
 public:
  Finish() = default;
  // `out` and `bias` point at the panel's first column; `valid` columns exist.
  Finish(const uint8_t* panel, const uint8_t* acts, int64_t act_stride, int64_t rows,
         const float* sums, int64_t valid, const float* bias, float* out, int64_t ldo)
      : panel_(panel), acts_(acts), sums_(sums), bias_(bias), out_(out), act_stride_(act_stride),
        valid_(valid), ldo_(ldo), partial_rows_(rows),
        lines_(rows >= kMinStreamedRows && valid >= kPanel && ldo > kMaxCachedStride &&
               (reinterpret_cast<uintptr_t>(out) | uint64_t(ldo * 4)) % 64 == 0) {}

  // Finishes the next rows, at most `count`.
  TIDEMILL_INLINE void some(int64_t count) {
    for (; count > 0 && partial_rows_ > 0; --count, --partial_rows_) {
      for (int64_t lane = 0; lane < min64(kPanel, valid_); lane += kLanes) finish(lane);
      acts_ += act_stride_, sums_ += kPanel, out_ += ldo_;
    }
  }
  TIDEMILL_INLINE void rest() { some(partial_rows_); }

 private:
  TIDEMILL_INLINE void finish(int64_t lane) const {
    const Vf sum = Panel::sum(panel_, acts_, sums_ + lane, lane);
    const Vf y = bias_ ? vadd(sum, vload_n(bias_ + lane, valid_ - lane)) : sum;
    lines_ ? vstream(out_ + lane, y) : vstore_n(out_ + lane, y, valid_ - lane);
  }

  const uint8_t *panel_ = nullptr, *acts_ = nullptr;
  const float *sums_ = nullptr, *bias_ = nullptr;
  float* out_ = nullptr;
  int64_t act_stride_ = 0, valid_ = 0, ldo_ = 0, partial_rows_ = 0;
  bool lines_ = false;
};

// Streams the weights of panels [p0, p1), depth by depth.
template <class Panel, bool kDequantized = Panel::kDequantized>
class BlockStream {
 public:
  BlockStream(const PackedMatrix& w, int64_t p0, int64_t)
      : panel_bytes_(w.panel_bytes), blocks_(tile_blocks<Panel>(w.k)),
        panel_(w.data + p0 * w.panel_bytes) {}

  TIDEMILL_INLINE const uint8_t* next() {
    const uint8_t* block = panel_ + Panel::kHead + block_ * kTileBlock;
    if (++block_ == blocks_) block_ = 0, panel_ += panel_bytes_;
    return block;
  }

 private:
  const int64_t panel_bytes_, blocks_;
  const uint8_t* panel_;
  int64_t block_ = 0;
};

// The same for quantized weights: a ring of dequantized blocks; the caller decides when the next one is
// produced.
template <class Panel, int64_t kRing>
class DequantStream {
 public:
  DequantStream(const PackedMatrix& w, int64_t p0, int64_t p1)
      : panel_bytes_(w.panel_bytes), blocks_(tile_blocks<Panel>(w.k)),
        panel_(w.data + p0 * w.panel_bytes), end_(w.data + p1 * w.panel_bytes) {}

  // Block i since the beginning; valid until kRing more have been produced.
  TIDEMILL_INLINE const uint8_t* at(uint64_t i) const { return ring_ + i % kRing * kTileBlock; }
  TIDEMILL_INLINE uint64_t dequantized() const { return dequantized_; }
  // False at the end of the stream.
  TIDEMILL_INLINE bool dequantize() {
    if (panel_ == end_) return false;
    prefetch_lines();
    Panel::dequantize(panel_, block_, ring_ + dequantized_++ % kRing * kTileBlock);
    if (++block_ == blocks_) block_ = 0, panel_ += panel_bytes_;
    return true;
  }

 private:
  // Prefetch distance in bytes, line by line: dequantizing a group fills the reorder buffer, so the
  // core does not run ahead by itself. Half and twice the distance are slower. The hardware prefetcher
  // continues to the end of a page; touching a page's first lines starts it there.
  static constexpr int64_t kPrefetchDistance = 1728, kPagePrefetchDistance = 3072;

  TIDEMILL_INLINE void prefetch_lines() const {
    constexpr int64_t kBytes = Panel::kLines * 64;
    const uint8_t* block = panel_ + Panel::line_at(block_);
    for (int64_t line = 0; line < kBytes; line += 64) prefetch_near(block + kPrefetchDistance + line);
    const uintptr_t from = reinterpret_cast<uintptr_t>(block) + kPagePrefetchDistance;
    const uintptr_t page = (from + kBytes) / kPageBytes * kPageBytes;
    if (from < page)
      for (int64_t line = 0; line < 256; line += 64)
        prefetch_near(reinterpret_cast<const uint8_t*>(page + uintptr_t(line)));
  }

  alignas(64) uint8_t ring_[kRing * kTileBlock];
  const int64_t panel_bytes_, blocks_;
  const uint8_t* panel_;
  const uint8_t* const end_;
  int64_t block_ = 0;
  uint64_t dequantized_ = 0;
};

// A tile load of recently stored data waits until the stores have retired, so weights are dequantized a
// few blocks before they are multiplied, across panel boundaries.
template <class Panel>
class BlockStream<Panel, true> {
 public:
  BlockStream(const PackedMatrix& w, int64_t p0, int64_t p1) : stream_(w, p0, p1) {
    for (int64_t b = 0; b < kBlocksAhead - 1; ++b) stream_.dequantize();
  }
  TIDEMILL_INLINE const uint8_t* next() {
    stream_.dequantize();
    return stream_.at(taken_++);
  }

 private:
  static constexpr int64_t kBlocksAhead = 4;
  DequantStream<Panel, kBlocksAhead> stream_;
  uint64_t taken_ = 0;
};

// Few rows that fit into one pair of tiles: panel after panel as one stream.
template <class Panel, bool kLower>
static void gemm_few(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride, int64_t rows,
                     int64_t p0, int64_t p1, const float* bias, float* out, int64_t ldo) {
  alignas(64) float sums[2 * kTileRows * kPanel];
  const int64_t blocks = tile_blocks<Panel>(w.k);
  BlockStream<Panel> weights(w, p0, p1);
  configure_product(rows);
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t n0 = p * kPanel;
    clear_sums<kLower>();
    for (int64_t b = 0; b < blocks; ++b)
      multiply_block<Panel, kLower>(weights.next(), acts + Panel::kActHead + b * 64, act_stride);
    store_sums<kLower>(sums);
    Finish<Panel>(w.data + p * w.panel_bytes, acts, act_stride, rows, sums, w.n - n0,
                  bias ? bias + n0 : nullptr, out + n0, ldo)
        .rest();
  }
  tiles_release();
}

// A pair of tiles among many rows. All pairs have full shape, because reconfiguring tiles costs more
// than computing some rows twice: the last pair (or its upper tile, if that is enough) starts earlier,
// and rows that were computed before are ignored.
struct RowTile {
  int64_t m, rows;  // rows this pair is responsible for
  int64_t first;    // first row it computes
  bool lower;

  RowTile(int64_t tile, int64_t m_rows)
      : m(tile * kPairRows), rows(min64(kPairRows, m_rows - m)),
        first(min64(m, m_rows - (rows > kTileRows ? kPairRows : kTileRows))),
        lower(rows > kTileRows) {}
};

// All rows times chunks of panels; the sums of each pair of tiles are in `sums`. A pair's results are
// stored during the products of the next pair, because tile stores complete only when the tile unit has
// drained.
template <class Panel>
class ManyRows {
 public:
  ManyRows(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride, int64_t m_rows,
           const float* bias, float* out, int64_t ldo, float* sums)
      : tiles((m_rows + kPairRows - 1) / kPairRows), w(w), acts_(acts), act_stride_(act_stride),
        m_rows_(m_rows), bias_(bias), out_(out), ldo_(ldo), sums_(sums) {}
  ~ManyRows() { finish_.rest(); }

  const int64_t tiles;
  const PackedMatrix& w;

  // `weights(tile)` returns a function from depth b to its address.
  template <class Weights>
  TIDEMILL_INLINE void multiply(int64_t p, int64_t from, int64_t to, Weights weights) {
    const bool last = to == tile_blocks<Panel>(w.k);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const RowTile at(tile, m_rows_);
      const uint8_t* act = acts_ + at.first * act_stride_;
      float* sums = sums_ + tile * kPairRows * kPanel;
      const auto where = weights(tile);
      const auto block = [&](int64_t b) __attribute__((always_inline)) {
        finish_.some(kFinished);
        return where(b);
      };
      at.lower ? multiply_chunk<Panel, true>(block, act, act_stride_, from, to, sums)
               : multiply_chunk<Panel, false>(block, act, act_stride_, from, to, sums);
      if (!last) continue;
      finish_.rest();
      const int64_t n0 = p * kPanel;
      finish_ = Finish<Panel>(w.data + p * w.panel_bytes, acts_ + at.m * act_stride_, act_stride_,
                              at.rows, sums + (at.m - at.first) * kPanel, w.n - n0,
                              bias_ ? bias_ + n0 : nullptr, out_ + at.m * ldo_ + n0, ldo_);
    }
  }

 private:
  static constexpr int64_t kFinished = 2;  // rows finished per depth: a pair of tiles per chunk

  const uint8_t* const acts_;
  const int64_t act_stride_, m_rows_;
  const float* const bias_;
  float* const out_;
  const int64_t ldo_;
  float* const sums_;
  Finish<Panel> finish_;
};

// A few pairs of tiles: reading and dequantizing weights takes as long as multiplying, so the next
// chunk is dequantized evenly among the products of the current one. Chunks have half the length, since
// two must fit in L1.
template <class Panel>
static void gemm_some(ManyRows<Panel>& rows, int64_t p0, int64_t p1) {
  constexpr int64_t kLength = kChunkBlocks / 2;
  const int64_t blocks = tile_blocks<Panel>(rows.w.k);
  DequantStream<Panel, 2 * kLength> wide(rows.w, p0, p1);
  for (int64_t b = 0; b < min64(kLength, blocks); ++b) wide.dequantize();
  uint64_t taken = 0;
  for (int64_t p = p0; p < p1; ++p) {
    for (int64_t from = 0; from < blocks; from += kLength) {
      const int64_t to = min64(blocks, from + kLength), left = to < blocks ? blocks - to : blocks;
      const uint64_t wanted = taken + uint64_t(to - from + min64(kLength, left));
      int64_t products = 0;
      const auto block = [&](int64_t b) __attribute__((always_inline)) {
        if (++products == rows.tiles) {
          products = 0;
          if (wide.dequantized() < wanted) wide.dequantize();
        }
        return wide.at(taken + uint64_t(b - from));
      };
      rows.multiply(p, from, to, [&](int64_t) { return block; });
      taken += uint64_t(to - from);
      while (wide.dequantized() < wanted && wide.dequantize()) continue;
    }
  }
}

// Many rows: a chunk is dequantized, then multiplied with all rows; meanwhile the next panel is
// prefetched.
template <class Panel>
static void gemm_many(ManyRows<Panel>& rows, int64_t p0, int64_t p1) {
  const PackedMatrix& w = rows.w;
  const int64_t blocks = tile_blocks<Panel>(w.k);
  alignas(64) uint8_t wide[Panel::kDequantized ? kChunkBlocks * kTileBlock : 64];
  for (int64_t p = p0; p < p1; ++p) {
    const uint8_t* panel = w.data + p * w.panel_bytes;
    const uint8_t* next = (p + 1) * kPanel < w.n ? panel + w.panel_bytes : nullptr;
    for (int64_t from = 0; from < blocks; from += kChunkBlocks) {
      const int64_t to = min64(blocks, from + kChunkBlocks);
      const uint8_t* weights = panel + Panel::kHead + from * kTileBlock;
      if constexpr (Panel::kDequantized) {
        for (int64_t b = from; b < to; ++b) Panel::dequantize(panel, b, wide + (b - from) * kTileBlock);
        weights = wide;
      }
      rows.multiply(p, from, to, [&](int64_t tile) {
            const int64_t line0 = tile * Panel::kLines / rows.tiles * 64;
            const int64_t line1 = (tile + 1) * Panel::kLines / rows.tiles * 64;
            return [=](int64_t b) __attribute__((always_inline)) {
              if (next)
                for (int64_t line = line0; line < line1; line += 64)
                  prefetch(next + Panel::line_at(b) + line);
              return weights + (b - from) * kTileBlock;
            };
          });
    }
  }
}

// More rows than one pair of tiles holds.
template <class Panel>
static void gemm_pairs(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride,
                       int64_t m_rows, int64_t p0, int64_t p1, const float* bias, float* out,
                       int64_t ldo) {
  alignas(64) float sums[kMaxRows * kPanel];
  configure_product(kPairRows);
  {
    ManyRows<Panel> rows(w, acts, act_stride, m_rows, bias, out, ldo, sums);
    if constexpr (Panel::kDequantized) {
      m_rows <= Panel::kSomeRows ? gemm_some(rows, p0, p1) : gemm_many(rows, p0, p1);
    } else {
      gemm_many(rows, p0, p1);
    }
  }
  tiles_release();
}

template <class Panel>
static void gemm_tiles(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride,
                       int64_t m_rows, int64_t p0, int64_t p1, const float* bias, float* out,
                       int64_t ldo, bool /*alone*/, KvPrefetch* /*kv_prefetch*/) {
  for (int64_t m = 0; m < m_rows; m += kMaxRows) {
    const int64_t rows = min64(kMaxRows, m_rows - m);
    auto* run = rows > kPairRows   ? &gemm_pairs<Panel>
                : rows > kTileRows ? &gemm_few<Panel, true>
                                   : &gemm_few<Panel, false>;
    run(w, acts + m * act_stride, act_stride, rows, p0, p1, bias, out + m * ldo, ldo);
  }
  if (m_rows >= kMinStreamedRows && ldo > kMaxCachedStride) streams_end();
}

// Returns nullptr if vector code is used: for few rows of int8 with a scale per row it is faster, and
// both are exact.
using GemmTiles = decltype(&gemm_tiles<Bf16Panel>);

static GemmTiles tiles_of(const PackedMatrix& w, int64_t m_rows) {
  constexpr int64_t kMinRowsI8 = 6;
  if (w.act == ActType::I8Row) return m_rows >= kMinRowsI8 ? &gemm_tiles<ChannelPanel> : nullptr;
  if (w.act != ActType::BF16) return nullptr;
  if (w.type == WeightType::BF16) return &gemm_tiles<Bf16Panel>;
  return with_dequant_type(w.type, []<WeightType kType>() -> GemmTiles {
    return &gemm_tiles<DequantPanel<kType>>;
  });
}
