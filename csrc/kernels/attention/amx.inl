// Attention over a span of bf16 keys and values with AMX tiles. Queries and probabilities are rounded
// to bf16 too, and every row goes through the tiles, even a single one. A row's bits do not depend on
// its neighbours: rows of a tile are computed alike, chunks lie at fixed positions, and unseen
// positions contribute a probability of zero times a finite value.
//
// Keys are the left operand, 16 tokens by 32 values in their cache layout; a token's values fill whole
// cache lines, so writing a token touches few of them. Scores are therefore produced token-major. Only
// the probabilities are transposed, to become a row-major left operand.

constexpr int64_t kTileDepth = 32;    // bf16 values that one tile product sums over
static_assert(kTileDepth == kKeyRun && kTileDepth == kChunk);
constexpr int64_t kTileQueries = 32;  // query rows per pass: two tiles
// Row length that does not map all rows to the same few sets of L1.
constexpr int64_t kTileProbRow = kSpan + kTileDepth;  // bf16

static inline int64_t tile_scratch_bytes(const AttnShape& shape) {
  return kTileQueries * (kSpan * 4 + kTileProbRow * 2 + shape.head_dim * 2) + kSpan * shape.v_dim * 2;
}

// One pass over a span for up to kTileQueries rows.
struct TileJob {
  const SpanJob& job;
  int64_t row0, count;
  const uint8_t* q;    // bf16 [count][d]
  uint8_t* queries;    // the same as right operand: [upper or lower][d / 2][columns][2]
  float* scores;       // [chunk][upper or lower][kChunk][columns]
  uint16_t* probs;     // [kTileQueries][kTileProbRow]
  uint8_t* copies;     // repacked chunks of V whose cache layout a tile cannot load
  bool leads;          // first pass over this span: K and V are not cached yet
  Visible see[kTileQueries];  // positions that each row sees,
  Visible all{kSpan, 0};      // that any row sees,
  Visible common{0, kSpan};   // that all rows see
  int64_t first = 0, chunks = 0;                   // first chunk that any row sees, and number of chunks
  const uint8_t* values[kSpan / kTileDepth] = {};  // V of each chunk

  void look() {
    for (int64_t r = 0; r < count; ++r) {
      see[r] = visible(job, row0 + r);
      common = {max64(common.lo, see[r].lo), min64(common.hi, see[r].hi)};
      if (see[r].hi > see[r].lo) all = {min64(all.lo, see[r].lo), max64(all.hi, see[r].hi)};
    }
    first = all.lo / kChunk * kChunk;
    chunks = (max64(all.hi, first) - first + kChunk - 1) / kChunk;
  }
  bool lower() const { return count > kTileRows; }
  // Bound by memory rather than by the tile unit.
  bool waits() const { return leads && !lower(); }
};

// --- prefetching ---
//
// With few rows, attention is bound by memory. The hardware prefetcher only works within a page and
// starts after it has seen some of the page's lines, so the first lines of the following pages are
// prefetched and the rest is left to it (prefetching every line is slower). While probabilities are
// computed, or if the current data is cached already, the hardware prefetcher is idle and every line is
// prefetched.

// Prefetches the first lines of each page in [from, from + bytes).
static TIDEMILL_INLINE void prefetch_page_heads(const uint8_t* from, int64_t bytes) {
  constexpr int64_t kFirst = 512;
  for (int64_t page = 0; page < bytes; page += kPageBytes)
    for (int64_t at = page; at < min64(page + kFirst, bytes); at += 64) prefetch_near(from + at);
}

// Prefetches what follows the keys of chunk t: the next chunk's keys, or after the last one the first
// values; a partially visible chunk of V is copied first.
static void prefetch_after(const TileJob& tile, int64_t t) {
  const SpanJob& job = tile.job;
  const int64_t block_size = job.kv.block_size, next = t + kChunk;
  const int64_t chunk_bytes = kTileDepth * job.shape.v_dim * 2;
  if (next >= tile.all.hi) {
    prefetch_page_heads(value_row<Bf16AsFloatCache>(job, tile.first / 2), chunk_bytes);
    if (tile.all.hi % kTileDepth) prefetch_page_heads(value_row<Bf16AsFloatCache>(job, t / 2), chunk_bytes);
    return;
  }
  for (int64_t at = next; at < min64(next + kChunk, tile.all.hi); at += block_size) {
    int64_t slot;
    const uint8_t* head = head_at(job, at, &slot);
    if (slot == 0) prefetch_page_heads(head, block_size * job.shape.head_dim * 2);
  }
}

// During chunk c of the last values: prefetches a share of the first keys of the next span.
static void prefetch_next_keys(const TileJob& tile, int64_t c) {
  const SpanJob& job = tile.job;
  const AttnNext& next = job.next;
  if (next.block_table == nullptr) return;
  const int64_t block = next.block_table[next.from / job.kv.block_size];
  const uint8_t* keys = head_base(job.kv, job.layout, block, next.kv_head);
  const int64_t lines = min64(kChunk, job.kv.block_size) * job.shape.head_dim * 2 / 64;
  for (int64_t line = c * lines / tile.chunks; line < (c + 1) * lines / tile.chunks; ++line)
    prefetch_near(keys + line * 64);
}

// 64 columns of a chunk of V, which are read in a later pass than the columns before them.
static TIDEMILL_INLINE void prefetch_columns(const uint8_t* v, int64_t v_row) {
  for (int64_t row = 0; row < kTileDepth / 2; ++row)
    for (int64_t line = 0; line < 256; line += 64) prefetch_near(v + row * v_row + line);
}

// Prefetches V while probabilities are computed: all of it for many rows, else one chunk.
class ValuePrefetch {
 public:
  explicit ValuePrefetch(const TileJob& tile)
      : tile_(tile), end_(!tile.leads ? 0 : tile.waits() ? 1 : tile.chunks) {}

  // One share per chunk of probabilities.
  void on() {
    const int64_t lines = tile_.job.shape.v_dim;  // per chunk
    const int64_t share = (end_ * lines + tile_.chunks - 1) / tile_.chunks;
    for (int64_t i = 0; i < share && at_ < end_; ++i) {
      const uint8_t* line = tile_.values[at_] + line_ * 64;
      tile_.waits() ? prefetch_near(line) : prefetch(line);
      if (++line_ == lines) ++at_, line_ = 0;
    }
  }

 private:
  const TileJob& tile_;
  int64_t at_ = 0, line_ = 0;  // next chunk, and its next line
  const int64_t end_;          // in chunks
};

// --- the parts of a span ---

// Distance between a token's keys and the previous token's.
struct KeyRuns {
  static constexpr int kLaneBytes = kKeyRun * 2;
};

// Transposes [16][N] to [N][16].
template <int N>
static TIDEMILL_INLINE void transpose(Vf (&v)[N]) {
  TIDEMILL_UNROLL
  for (int stage = 1; stage < N; stage *= 2) {
    Vf halves[N];
    TIDEMILL_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      halves[i] = every_second<0>(v[2 * i], v[2 * i + 1]);
      halves[N / 2 + i] = every_second<1>(v[2 * i], v[2 * i + 1]);
    }
    TIDEMILL_UNROLL
    for (int i = 0; i < N; ++i) v[i] = halves[i];
  }
}

// Scores and probabilities of a tile's rows: kColumns rows per product, and as many lower ones. A
// vector holds kTokens tokens by kColumns rows.
template <int kColumns, bool kLower>
class TileRows {
 public:
  explicit TileRows(const TileJob& tile)
      : tile_(tile),
        depths_(tile.job.shape.head_dim / 2),
        reshapes_(reshapes(tile.job) || !(tile.job.shape.scale > 0.0f)) {
    int32_t token[kLanes], lo[1 + kLower][kLanes] = {}, hi[1 + kLower][kLanes] = {};
    for (int64_t lane = 0; lane < kLanes; ++lane) token[lane] = int32_t(lane / kColumns);
    for (int64_t r = 0; r < tile.count; ++r) {
      for (int64_t lane = r % kColumns; lane < kLanes; lane += kColumns) {
        lo[r / kTileRows][lane] = int32_t(tile.see[r].lo);
        hi[r / kTileRows][lane] = int32_t(tile.see[r].hi);
      }
    }
    token_ = iload(token);
    for (int lower = 0; lower <= int(kLower); ++lower)
      lo_[lower] = iload(lo[lower]), hi_[lower] = iload(hi[lower]);
  }

  void score() {
    const TileJob& tile = tile_;
    place_queries(0);
    if (kLower) place_queries(1);
    configure();
    for (Vf& best : best_) best = vset(-kInfinity);
    for (int64_t c = 0; c < tile.chunks; ++c) {
      if (tile.waits()) prefetch_after(tile, tile.first + c * kChunk);
      multiply(tile.first + c * kChunk, scores(c, 0));
      // Tile stores complete late; meanwhile the previous chunk's scores are processed.
      if (c > 0) find_largest(c - 1);
    }
    find_largest(tile.chunks - 1);
  }

  // Per row r: m[r] = largest score, l[r] = sum of probabilities.
  void weigh(float* m, float* l) {
    const TileJob& tile = tile_;
    float largest[1 + kLower][kLanes] = {};
    // Unless scores are reshaped, their scale is folded into the factor of the exponential. The largest
    // score stays the same one.
    const float scale = reshapes_ ? 1.0f : tile.job.shape.scale;
    for (int64_t r = 0; r < tile.count; ++r) {
      const int64_t first = r % kColumns;
      float of[kLanes];
      vstore(of, best_[r / kTileRows]);
      float most = of[first];
      for (int64_t lane = first; lane < kLanes; lane += kColumns)
        most = of[lane] > most ? of[lane] : most;
      for (int64_t lane = first; lane < kLanes; lane += kColumns)
        largest[r / kTileRows][lane] = most;
      m[r] = most * scale;
      sums_[r] = vzero();
    }
    ValuePrefetch fetch(tile);
    const Vf doublings = vset(scale * 1.44269504088896341f);
    for (int64_t c = 0; c < tile.chunks; ++c) {
      fetch.on();
      for (int lower = 0; lower <= int(kLower); ++lower)
        weigh_chunk(c, lower, vload(largest[lower]), doublings);
    }
    for (int64_t r = 0; r < tile.count; ++r) l[r] = vreduce_add(sums_[r]);
  }

 private:
  static constexpr int64_t kRow = kColumns * 4;  // bytes per tile row of queries or scores
  static constexpr int64_t kTile = kHalf * kColumns;
  static constexpr int kTokens = kLanes / kColumns;  // tokens per vector

  // Tiles: 0 and 1 scores of 16 tokens each, 2 and 3 those of the lower rows, 4 and 5 keys, 6 and 7
  // queries.
  static void configure() {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile)
      shapes.set(tile, kTileRows, tile == 4 || tile == 5 ? kKeyRun * 2 : kRow);
    tiles_configure(shapes);
  }

  uint8_t* queries(int lower) const { return tile_.queries + lower * depths_ * kRow; }
  int64_t rows(int lower) const { return min64(kColumns, tile_.count - lower * kTileRows); }

  void place_queries(int lower) const {
    const int64_t q_row = depths_ * 4, count = rows(lower);
    const uint8_t* q = tile_.q + lower * kTileRows * q_row;
    uint8_t* out = queries(lower);
    for (int64_t at = 0; at < depths_; at += kLanes, out += kLanes * kRow) {
      if constexpr (kColumns == kLanes) {
        Vf v[kLanes];
        TIDEMILL_UNROLL
        for (int r = 0; r < kLanes; ++r)
          v[r] = r < count ? as_float(iload(q + r * q_row + at * 4)) : vzero();
        transpose(v);
        TIDEMILL_UNROLL
        for (int i = 0; i < kLanes; ++i) istore(out + i * kRow, as_int(v[i]));
      } else {
        for (int64_t i = 0; i < kLanes; ++i)
          for (int64_t r = 0; r < kColumns; ++r)
            store_as(out + i * kRow + r * 4,
                     r < count ? load_as<uint32_t>(q + r * q_row + (at + i) * 4) : 0u);
      }
    }
  }

  float* scores(int64_t c, int lower) const {
    return tile_.scores + (c * (1 + kLower) + lower) * 2 * kTile;
  }
  // Whether all rows see the whole chunk.
  bool whole(int64_t t) const { return t >= tile_.common.lo && t + kChunk <= tile_.common.hi; }
  // A vector of scores or probabilities starting at token t, with `fill` where a row does not see the
  // token.
  TIDEMILL_INLINE Vf keep_seen(Vf v, int lower, int64_t t, float fill) const {
    return keep_within(v, iadd(token_, iset(int32_t(t))), lo_[lower], hi_[lower], fill);
  }

  void multiply(int64_t t, float* out) const {
    const SpanJob& job = tile_.job;
    const int64_t k_step = job.kv.block_size * kKeyRun * 2;
    const uint8_t* half[2];
    chunk_keys<KeyRuns>(job, t, tile_.all, half);
    const uint8_t *upper = queries(0), *lower = queries(1);
    tile_zero<0>();
    tile_zero<1>();
    if constexpr (kLower) tile_zero<2>(), tile_zero<3>();
    for (int64_t s = 0; s < depths_ / kTileRows; ++s) {
      tile_load<6>(upper + s * kTileRows * kRow, kRow);
      tile_load<4>(half[0] + s * k_step, kKeyRun * 2);
      tile_dot_bf16<0, 4, 6>();
      tile_load<5>(half[1] + s * k_step, kKeyRun * 2);
      tile_dot_bf16<1, 5, 6>();
      if constexpr (!kLower) continue;
      tile_load<7>(lower + s * kTileRows * kRow, kRow);
      tile_dot_bf16<2, 4, 7>();
      tile_dot_bf16<3, 5, 7>();
    }
    tile_store<0>(out, kRow);
    tile_store<1>(out + kTile, kRow);
    if constexpr (kLower) {
      tile_store<2>(out + 2 * kTile, kRow);
      tile_store<3>(out + 3 * kTile, kRow);
    }
  }

  // Softcap and ALiBi, as in reshape_row.
  void reshape(Vf (&v)[kColumns], int lower, int64_t t) const {
    const SpanJob& job = tile_.job;
    float slopes[kLanes] = {}, distances[kLanes] = {};
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t row = tile_.row0 + lower * kTileRows + lane % kColumns;
      const int64_t head = job.kv_head * job.group + row % job.group;
      if (job.shape.slopes) slopes[lane] = job.shape.slopes[head];
      distances[lane] = float(job.base - (job.pos0 + row / job.group) + t + lane / kColumns);
    }
    for (int i = 0; i < kColumns; ++i) {
      v[i] = vmul(v[i], vset(job.shape.scale));
      if (job.shape.softcap > 0) v[i] = capped(v[i], vset(job.shape.softcap));
      v[i] = vfma(vload(slopes), vadd(vload(distances), vset(float(i * kTokens))), v[i]);
    }
  }

  // Updates the running maximum with a chunk's scores.
  void find_largest(int64_t c) {
    const int64_t t = tile_.first + c * kChunk;
    for (int lower = 0; lower <= int(kLower); ++lower) {
      float* at = scores(c, lower);
      for (int64_t half = 0; half < kChunk; half += kHalf, at += kTile) {
        Vf v[kColumns];
        TIDEMILL_UNROLL
        for (int i = 0; i < kColumns; ++i) v[i] = vload(at + i * kLanes);
        if (reshapes_) {
          reshape(v, lower, t + half);
          for (int i = 0; i < kColumns; ++i) vstore(at + i * kLanes, v[i]);
        }
        if (!whole(t)) {
          for (int i = 0; i < kColumns; ++i)
            v[i] = keep_seen(v[i], lower, t + half + i * kTokens, -kInfinity);
        }
        TIDEMILL_UNROLL
        for (int i = 0; i < kColumns; ++i) best_[lower] = vmax(best_[lower], v[i]);
      }
    }
  }

  // Converts a chunk's scores to bf16 probabilities, zero where a row does not see the token.
  void weigh_chunk(int64_t c, int lower, Vf largest, Vf doublings) {
    const int64_t t = tile_.first + c * kChunk, row0 = lower * kTileRows;
    const bool all = whole(t);
    const float* at = scores(c, lower);
    Vf v[2][kColumns];
    TIDEMILL_UNROLL
    for (int half = 0; half < 2; ++half) {
      constexpr int kAtOnce = kColumns < 4 ? kColumns : 4;
      TIDEMILL_UNROLL
      for (int i = 0; i < kColumns; i += kAtOnce) {
        Vf x[kAtOnce];
        TIDEMILL_UNROLL
        for (int j = 0; j < kAtOnce; ++j)
          x[j] = vmul(vsub(vload(at + half * kTile + (i + j) * kLanes), largest), doublings);
        powers_of_two(x);
        TIDEMILL_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const int64_t from = t + half * kHalf + (i + j) * kTokens;
          v[half][i + j] = all ? x[j] : keep_seen(x[j], lower, from, 0.0f);
        }
      }
      transpose(v[half]);
    }
    uint16_t* out = tile_.probs + row0 * kTileProbRow + t;
    TIDEMILL_UNROLL
    for (int r = 0; r < kColumns; ++r) {
      if (r >= rows(lower)) break;
      sums_[row0 + r] = vadd(sums_[row0 + r], vadd(v[0][r], v[1][r]));
      istore(out + r * kTileProbRow, round_bf16_pair(v[0][r], v[1][r]));
    }
  }

  const TileJob& tile_;
  const int64_t depths_;  // pairs per key
  const bool reshapes_;   // softcap, slopes or a non-positive scale
  Vi token_, lo_[1 + kLower], hi_[1 + kLower];  // per lane: token, and the row's visible range
  Vf best_[1 + kLower];    // largest scores, laid out as a vector of scores
  Vf sums_[kTileQueries];  // per row: partial sums of probabilities
};

// Copies a chunk of V with unseen tokens cleared: their slots may hold anything, even NaN.
static void copy_seen(const TileJob& tile, int64_t t, uint8_t* out) {
  const int64_t d = tile.job.shape.v_dim;
  for (int64_t i = 0; i < kTileDepth; i += 2) {
    const bool even = t + i >= tile.all.lo && t + i < tile.all.hi;
    const bool odd = t + i + 1 >= tile.all.lo && t + i + 1 < tile.all.hi;
    const Vi mask = iset(int32_t((even ? 0x0000ffffu : 0u) | (odd ? 0xffff0000u : 0u)));
    const uint8_t* row = even || odd ? value_row<Bf16AsFloatCache>(tile.job, (t + i) / 2) : nullptr;
    for (int64_t at = 0; at < d * 4; at += kLanes * 4)
      istore(out + i / 2 * d * 4 + at, row ? iand(iload(row + at), mask) : iset(0));
  }
}

// Locates the chunks of V; chunks with unseen tokens, or spread over two blocks, are copied.
static void find_values(TileJob& tile) {
  const int64_t d = tile.job.shape.v_dim;
  for (int64_t c = 0; c < tile.chunks; ++c) {
    const int64_t t = tile.first + c * kTileDepth;
    const bool seen = t >= tile.all.lo && t + kTileDepth <= tile.all.hi;
    if (seen && tile.job.kv.block_size >= kTileDepth) {
      tile.values[c] = value_row<Bf16AsFloatCache>(tile.job, t / 2);
    } else {
      uint8_t* copy = tile.copies + c * kTileDepth * d * 2;
      copy_seen(tile, t, copy);
      tile.values[c] = copy;
    }
  }
}

template <int kColumns, bool kLower>
static void weigh_rows(TileJob& tile, float* m, float* l) {
  if constexpr (!kLower && kColumns > 1) {
    if (tile.count <= kColumns / 2) return weigh_rows<kColumns / 2, false>(tile, m, l);
  }
  TileRows<kColumns, kLower> rows(tile);
  rows.score();
  find_values(tile);
  rows.weigh(m, l);
}

// acc[rows][64 or 32 columns] starting at column d0, summed over the span's chunks in order.
template <bool kLower>
static inline void tile_columns(const TileJob& tile, int64_t d0, float* acc) {
  const int64_t d = tile.job.shape.v_dim, v_row = d * 4, p_row = kTileProbRow * 2;
  const bool wide = !kLower && d0 + 2 * kTileDepth <= d;  // four accumulators for the upper rows
  const bool last = d0 + 2 * kTileDepth >= d;
  tile_zero<0>();
  tile_zero<1>();
  if (kLower || wide) tile_zero<2>(), tile_zero<3>();
  for (int64_t c = 0; c < tile.chunks; ++c) {
    const uint8_t* v = tile.values[c] + d0 * 4;
    const uint16_t* p = tile.probs + tile.first + c * kTileDepth;
    if (!kLower && tile.waits()) {
      if (d0 == 0 && c + 1 < tile.chunks) prefetch_page_heads(tile.values[c + 1], kTileDepth * d * 2);
      last ? prefetch_next_keys(tile, c) : prefetch_columns(v + 256, v_row);
    }
    tile_load<4>(p, p_row);
    tile_load<6>(v, v_row);
    tile_dot_bf16<0, 4, 6>();
    tile_load<7>(v + 64, v_row);
    tile_dot_bf16<1, 4, 7>();
    if (kLower) {
      tile_load<5>(p + kTileRows * kTileProbRow, p_row);
      tile_dot_bf16<2, 5, 6>();
      tile_dot_bf16<3, 5, 7>();
    } else if (wide) {
      tile_load<6>(v + 128, v_row);
      tile_dot_bf16<2, 4, 6>();
      tile_load<7>(v + 192, v_row);
      tile_dot_bf16<3, 4, 7>();
    }
  }
  float* out = acc + tile.row0 * d + d0;
  tile_store<0>(out, d * 4);
  tile_store<1>(out + kLanes, d * 4);
  float* out2 = kLower ? out + kTileRows * d : out + 2 * kLanes;
  if (kLower || wide) tile_store<2>(out2, d * 4), tile_store<3>(out2 + kLanes, d * 4);
}

// Tiles: 0 to 3 sums, 4 and 5 probabilities (upper and lower rows), 6 and 7 values. Without lower rows
// all four sums belong to the upper rows.
static inline void configure_values(const TileJob& tile) {
  const int64_t upper = min64(tile.count, kTileRows), lower = tile.count - upper;
  TileShapes shapes;
  for (int sum = 0; sum < 4; ++sum) shapes.set(sum, sum >= 2 && lower > 0 ? lower : upper, 64);
  shapes.set(4, upper, kTileDepth * 2);
  if (lower > 0) shapes.set(5, lower, kTileDepth * 2);
  shapes.set(6, kTileDepth / 2, 64);
  shapes.set(7, kTileDepth / 2, 64);
  tiles_configure(shapes);
}

static void tile_values(const TileJob& tile, float* acc) {
  configure_values(tile);
  const int64_t d = tile.job.shape.v_dim;
  if (tile.lower()) {
    for (int64_t d0 = 0; d0 < d; d0 += kTileDepth) tile_columns<true>(tile, d0, acc);
  } else {
    for (int64_t d0 = 0; d0 < d; d0 += 2 * kTileDepth) tile_columns<false>(tile, d0, acc);
  }
}

static void span_tiles(const SpanJob& job, const float* q, int64_t q_stride, int64_t nq, float* m,
                       float* l, float* acc, uint8_t* scratch) {
  const int64_t d = job.shape.head_dim, dv = job.shape.v_dim, rows = nq * job.group;
  float* scores = reinterpret_cast<float*>(scratch);
  uint16_t* probs = reinterpret_cast<uint16_t*>(scores + kTileQueries * kSpan);
  uint8_t* queries = reinterpret_cast<uint8_t*>(probs + kTileQueries * kTileProbRow);
  uint8_t* copies = queries + kTileQueries * d * 2;
  for (int64_t row = 0; row < rows; ++row)
    pack_bf16(q + row / job.group * q_stride + (job.kv_head * job.group + row % job.group) * d, d,
              job.q + row * d * 2);
  int64_t tiles = (rows + kTileQueries - 1) / kTileQueries;
  for (int64_t row = 0; row < rows; --tiles) {
    const int64_t count = (rows - row + tiles - 1) / tiles;
    TileJob tile{job, row, count, job.q + row * d * 2, queries, scores, probs, copies, row == 0,
                 {}};
    tile.look();
    if (tile.chunks == 0) {
      __builtin_memset(acc + row * dv, 0, size_t(count * dv) * 4);
      for (int64_t r = row; r < row + count; ++r) m[r] = -kInfinity, l[r] = 0.0f;
    } else {
      tile.lower() ? weigh_rows<kTileRows, true>(tile, m + row, l + row)
                   : weigh_rows<kTileRows, false>(tile, m + row, l + row);
      tile_values(tile, acc);
    }
    row += count;
  }
  tiles_release();
}
