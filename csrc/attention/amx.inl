// Attention over a span of bf16 keys and values by AMX tiles: queries and probabilities are rounded
// to bf16 too, and every row goes through the tiles, a lone one as well. A row's bits do not depend
// on its neighbours: rows of a tile are computed alike, chunks lie at fixed positions, and what a
// row does not see enters as a probability of zero times a finite value.
//
// Keys are a product's left side, 16 tokens by 32 values as they lie in the cache, a token's values in
// whole lines, so that to write a token touches few of them. So scores come token by token, and are turned
// around for what is made of them row by row.

constexpr int64_t kTileDepth = 32;    // values of bf16 that one tile product sums over
static_assert(kTileDepth == kKeyRun);
constexpr int64_t kTileQueries = 32;  // query rows at a time: two tiles
// Row lengths that do not map all rows to the same few lines of the first-level cache.
constexpr int64_t kTileScoreRow = kSpan + 16;         // floats
constexpr int64_t kTileProbRow = kSpan + kTileDepth;  // bf16

constexpr int64_t kFreshScores = kTileQueries * kChunk;  // floats, of a chunk

static inline int64_t tile_scratch_bytes(const AttnShape& shape) {
  return kTileQueries * (kTileScoreRow * 4 + kTileProbRow * 2 + shape.head_dim * 2) +
         kSpan * shape.v_dim * 2 + 2 * kFreshScores * 4;
}

// One tile's worth of rows at work on a span.
struct TileJob {
  const SpanJob& job;
  int64_t row0, count;
  Visible all;         // what any of the rows sees
  const uint8_t* q;    // bf16 [count][d]
  uint8_t* queries;    // the same as a tile's right side: [upper or lower][d / 2][columns][2]
  float* fresh;        // scores of two chunks in turn: [upper or lower][kChunk][columns]
  float* scores;       // [kTileQueries][kTileScoreRow]
  uint16_t* probs;     // [kTileQueries][kTileProbRow]
  uint8_t* copies;     // chunks of V that do not lie as a tile wants them
  bool leads;          // the first of its span: K and V are not in the caches yet
  int64_t first, chunks;                        // of V: where they begin, how many
  const uint8_t* values[kSpan / kTileDepth];    // where each lies

  bool lower() const { return count > kTileRows; }
  // Whether it waits for memory rather than for the tiles.
  bool waits() const { return leads && !lower(); }
};

// --- what is asked for ahead ---
//
// Few rows wait for memory. The hardware reads ahead by itself, but only to the end of a page, and not
// before it has met some lines of it: so the first lines of the pages that come next are asked for
// while others are read, and the rest is left to it (line by line is slower). While probabilities are
// made or what is read is near already, nothing goes on by itself, and lines are asked for one by one.

// What lies at `from`, by the first lines of its pages.
static TIDEMILL_INLINE void announce(const uint8_t* from, int64_t bytes) {
  constexpr int64_t kFirst = 512;
  for (int64_t page = 0; page < bytes; page += kPageBytes)
    for (int64_t at = page; at < min64(page + kFirst, bytes); at += 64) prefetch_near(from + at);
}

// What is read after the keys of chunk t: those of the next one; after the last one values, of which a
// chunk that is seen in part is copied first.
static void announce_after(const TileJob& tile, int64_t t) {
  const SpanJob& job = tile.job;
  const int64_t block_size = job.kv.block_size, next = t + kChunk;
  const int64_t chunk_bytes = kTileDepth * job.shape.v_dim * 2;
  if (next >= tile.all.hi) {
    announce(value_row<WideCache>(job, tile.all.lo / kTileDepth * kTileDepth / 2), chunk_bytes);
    if (tile.all.hi % kTileDepth) announce(value_row<WideCache>(job, t / 2), chunk_bytes);
    return;
  }
  for (int64_t at = next; at < min64(next + kChunk, tile.all.hi); at += block_size) {
    int64_t slot;
    const uint8_t* head = head_at(job, at, &slot);
    if (slot == 0) announce(head, block_size * job.shape.head_dim * 2);
  }
}

// Beside chunk c of the last values: a share of the first keys of what comes after this span.
static void ask_next_keys(const TileJob& tile, int64_t c) {
  const SpanJob& job = tile.job;
  const AttnNext& next = job.next;
  if (next.block_table == nullptr) return;
  const int64_t block = next.block_table[next.from / job.kv.block_size];
  const uint8_t* keys = head_base(job.kv, job.layout, block, next.kv_head);
  const int64_t lines = min64(kChunk, job.kv.block_size) * job.shape.head_dim * 2 / 64;
  for (int64_t line = c * lines / tile.chunks; line < (c + 1) * lines / tile.chunks; ++line)
    prefetch_near(keys + line * 64);
}

// 64 columns of a chunk of V, which are read in a later pass than those before them.
static TIDEMILL_INLINE void ask_columns(const uint8_t* v, int64_t v_row) {
  for (int64_t row = 0; row < kTileDepth / 2; ++row)
    for (int64_t line = 0; line < 256; line += 64) prefetch_near(v + row * v_row + line);
}

// Lines of V brought closer while probabilities are made, spread over the rows and their steps: all of
// them where there are many rows, else a chunk's.
class Fetch {
 public:
  Fetch(const TileJob& tile, int64_t r) : tile_(tile) {
    if (!tile.leads) return;
    const int64_t lines = (tile.waits() ? 1 : tile.chunks) * tile.job.shape.v_dim;
    next_ = lines * r / tile.count;
    end_ = lines * (r + 1) / tile.count;
    step_ = (end_ - next_ + kSpan / kTileDepth - 1) / (kSpan / kTileDepth);
  }
  inline void on() {
    const int64_t d = tile_.job.shape.v_dim;
    for (const int64_t to = min64(next_ + step_, end_); next_ < to; ++next_) {
      const uint8_t* line = tile_.values[next_ / d] + next_ % d * 64;
      tile_.waits() ? prefetch_near(line) : prefetch(line);
    }
  }

 private:
  const TileJob& tile_;
  int64_t next_ = 0, end_ = 0, step_ = 0;
};

// --- the parts of a span ---

// A token's keys lie so far behind the one's before.
struct KeyRuns {
  static constexpr int kLaneBytes = kKeyRun * 2;
};

// What holds [16][N] values afterwards holds [N][16].
template <int N>
static TIDEMILL_INLINE void turn_around(Vf (&v)[N]) {
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

// Scores of a tile's rows, of which kColumns are multiplied at once, and as many lower ones.
template <int kColumns, bool kLower>
class Scores {
 public:
  explicit Scores(const TileJob& tile) : tile_(tile), depths_(tile.job.shape.head_dim / 2) {}

  void run() {
    const TileJob& tile = tile_;
    place_queries(0);
    if (kLower) place_queries(1);
    configure();
    float *fresh = tile.fresh, *before = fresh + kFreshScores;
    const int64_t first = tile.all.lo / kChunk * kChunk;
    for (int64_t t = first; t < tile.all.hi; t += kChunk) {
      if (tile.waits()) announce_after(tile, t);
      multiply(t, fresh);
      // What tiles have stored is there when they are done: the scores before meanwhile.
      if (t > first) spread(before, t - kChunk);
      float* const next = before;
      before = fresh;
      fresh = next;
    }
    spread(before, (tile.all.hi - 1) / kChunk * kChunk);
  }

 private:
  static constexpr int64_t kRow = kColumns * 4;  // bytes of a tile's row of queries or scores

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
        turn_around(v);
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

  void multiply(int64_t t, float* fresh) const {
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
    constexpr int64_t kTile = kHalf * kColumns;
    tile_store<0>(fresh, kRow);
    tile_store<1>(fresh + kTile, kRow);
    if constexpr (kLower) {
      tile_store<2>(fresh + 2 * kTile, kRow);
      tile_store<3>(fresh + 3 * kTile, kRow);
    }
  }

  // The scores of chunk t to their rows.
  void spread(const float* fresh, int64_t t) const {
    for (int lower = 0; lower <= int(kLower); ++lower) {
      float* const out = tile_.scores + lower * kTileRows * kTileScoreRow + t;
      const int64_t count = rows(lower);
      for (int64_t half = 0; half < kChunk; half += kHalf, fresh += kHalf * kColumns) {
        Vf v[kColumns];
        TIDEMILL_UNROLL
        for (int i = 0; i < kColumns; ++i) v[i] = vload(fresh + i * kLanes);
        turn_around(v);
        TIDEMILL_UNROLL
        for (int r = 0; r < kColumns; ++r)
          if (r < count) vstore(out + r * kTileScoreRow + half, v[r]);
      }
    }
  }

  const TileJob& tile_;
  const int64_t depths_;  // pairs of a key
};

template <int kColumns>
static void few_scores(const TileJob& tile) {
  if constexpr (kColumns > 1) {
    if (tile.count <= kColumns / 2) return few_scores<kColumns / 2>(tile);
  }
  Scores<kColumns, false>(tile).run();
}

static void tile_scores(const TileJob& tile) {
  tile.lower() ? Scores<kTileRows, true>(tile).run() : few_scores<kTileRows>(tile);
}

// Scores of row r to probabilities exp(s - m) in bf16, zero where the row sees nothing.
static void tile_softmax(const TileJob& tile, int64_t r, float* m, float* l) {
  const SpanJob& job = tile.job;
  const Visible see = visible(job, tile.row0 + r);
  const int64_t first = tile.all.lo / kTileDepth * kTileDepth;
  const int64_t last = round_up(tile.all.hi, kTileDepth);
  float* row = tile.scores + r * kTileScoreRow;
  uint16_t* out = tile.probs + r * kTileProbRow;
  if (see.hi <= see.lo) {
    *m = -kInfinity;
    *l = 0.0f;
    for (int64_t t = first; t < last; t += kTileDepth) istore(out + t, iset(0));
    return;
  }
  const int64_t begin = see.lo / kChunk * kChunk, end = round_up(see.hi, kChunk);
  Vf scale = vset(job.shape.scale);
  if (reshapes(job)) {
    for (int64_t t = begin; t < end; t += kLanes) vstore(row + t, vmul(vload(row + t), scale));
    reshape_row(job, tile.row0 + r, row, see);
    scale = vset(1.0f);
  }
  Vf best = vset(-kInfinity);
  for (int64_t t = begin; t < end; t += kLanes) {
    Vf s = vmul(vload(row + t), scale);
    if (t < see.lo || t + kLanes > see.hi) s = keep_range(s, t, see.lo, see.hi, -kInfinity);
    vstore(row + t, s);
    best = vmax(best, s);
  }
  *m = vreduce_max(best);
  const Vf largest = vset(*m);
  Vf sum = vzero();
  Fetch fetch(tile, r);
  for (int64_t t = begin; t < end; t += 2 * kLanes) {
    fetch.on();
    const Vf p = vexp(vsub(vload(row + t), largest));
    const Vf p2 = vexp(vsub(vload(row + t + kLanes), largest));
    sum = vadd(vadd(sum, p), p2);
    istore(out + t, round_bf16_pair(p, p2));
  }
  *l = vreduce_add(sum);
  for (int64_t t = first; t < begin; t += kTileDepth) istore(out + t, iset(0));
  for (int64_t t = end; t < last; t += kTileDepth) istore(out + t, iset(0));
}

// A chunk of V with the tokens nobody sees cleared: their slots may hold anything, a NaN included.
static void copy_seen(const TileJob& tile, int64_t t, uint8_t* out) {
  const int64_t d = tile.job.shape.v_dim;
  for (int64_t i = 0; i < kTileDepth; i += 2) {
    const bool even = t + i >= tile.all.lo && t + i < tile.all.hi;
    const bool odd = t + i + 1 >= tile.all.lo && t + i + 1 < tile.all.hi;
    const Vi mask = iset(int32_t((even ? 0x0000ffffu : 0u) | (odd ? 0xffff0000u : 0u)));
    const uint8_t* row = even || odd ? value_row<WideCache>(tile.job, (t + i) / 2) : nullptr;
    for (int64_t at = 0; at < d * 4; at += kLanes * 4)
      istore(out + i / 2 * d * 4 + at, row ? iand(iload(row + at), mask) : iset(0));
  }
}

// acc[rows][64 or 32 columns] from column d0 on, summed over the span's chunks in order.
template <bool kLower>
static inline void tile_columns(const TileJob& tile, int64_t d0, float* acc) {
  const int64_t d = tile.job.shape.v_dim, v_row = d * 4, p_row = kTileProbRow * 2;
  const bool wide = !kLower && d0 + 2 * kTileDepth <= d;  // four sums for the upper rows
  const bool last = d0 + 2 * kTileDepth >= d;
  tile_zero<0>();
  tile_zero<1>();
  if (kLower || wide) tile_zero<2>(), tile_zero<3>();
  for (int64_t c = 0; c < tile.chunks; ++c) {
    const uint8_t* v = tile.values[c] + d0 * 4;
    const uint16_t* p = tile.probs + tile.first + c * kTileDepth;
    if (!kLower && tile.waits()) {
      if (d0 == 0 && c + 1 < tile.chunks) announce(tile.values[c + 1], kTileDepth * d * 2);
      last ? ask_next_keys(tile, c) : ask_columns(v + 256, v_row);
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

// Where the chunks of V lie; those with tokens that nobody sees, or in two blocks, are copied.
static void find_values(TileJob& tile) {
  const int64_t d = tile.job.shape.v_dim;
  tile.first = tile.all.lo / kTileDepth * kTileDepth;
  tile.chunks = 0;
  for (int64_t t = tile.first; t < tile.all.hi; t += kTileDepth, ++tile.chunks) {
    const bool seen = t >= tile.all.lo && t + kTileDepth <= tile.all.hi;
    if (seen && tile.job.kv.block_size >= kTileDepth) {
      tile.values[tile.chunks] = value_row<WideCache>(tile.job, t / 2);
    } else {
      uint8_t* copy = tile.copies + tile.chunks * kTileDepth * d * 2;
      copy_seen(tile, t, copy);
      tile.values[tile.chunks] = copy;
    }
  }
}

// Tiles: 0 to 3 sums, 4 and 5 probabilities (upper and lower rows), 6 and 7 values. Without lower rows
// all four sums are the upper rows'.
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
  uint16_t* probs = reinterpret_cast<uint16_t*>(scores + kTileQueries * kTileScoreRow);
  float* fresh = reinterpret_cast<float*>(probs + kTileQueries * kTileProbRow);
  uint8_t* queries = reinterpret_cast<uint8_t*>(fresh + 2 * kFreshScores);
  uint8_t* copies = queries + kTileQueries * d * 2;
  for (int64_t row = 0; row < rows; ++row)
    pack_bf16(q + row / job.group * q_stride + (job.kv_head * job.group + row % job.group) * d, d,
              job.q + row * d * 2);
  int64_t tiles = (rows + kTileQueries - 1) / kTileQueries;
  for (int64_t row = 0; row < rows; --tiles) {
    const int64_t count = (rows - row + tiles - 1) / tiles;
    TileJob tile{job, row, count, seen_by(job, row, count), job.q + row * d * 2,
                 queries, fresh, scores, probs, copies, row == 0, 0, 0, {}};
    if (tile.all.hi <= tile.all.lo) {
      __builtin_memset(acc + row * dv, 0, size_t(count * dv) * 4);
      for (int64_t r = row; r < row + count; ++r) m[r] = -kInfinity, l[r] = 0.0f;
    } else {
      tile_scores(tile);
      find_values(tile);
      for (int64_t r = 0; r < count; ++r) tile_softmax(tile, r, m + row + r, l + row + r);
      tile_values(tile, acc);
    }
    row += count;
  }
  tiles_release();
}
