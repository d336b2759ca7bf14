// Attention of a few queries over one span. All scores of the span are computed first (at most kSpan
// per row), so there is one maximum and no rescaling. Rows are computed kScoreRows at a time. A row's
// bits depend only on its query and the positions it sees: scores of unseen positions are replaced
// before they are used, and unseen steps of V are skipped, not multiplied by zero.

#include "kernels/attention/powers.inl"

// Row stride of the scores in floats: one cache line more than a span, so that the rows' scores of a
// position do not compete for the same L1 set.
constexpr int64_t kScoreRow = kSpan + 16;

// Positions of the span that one row sees: [lo, hi) relative to the span's start; {0, 0}: none.
struct Visible {
  int64_t lo, hi;
};

struct SpanJob {
  const AttnShape& shape;
  const KvLayer& kv;
  const int32_t* block_table;
  CacheLayout layout;
  int64_t base;        // first absolute position of the span
  int64_t kv_head;
  int64_t pos0;
  int64_t group;       // query heads per KV head
  int64_t steps;       // dot product steps per score
  int64_t vectors;     // vectors per row of V
  int64_t acc_row;     // floats per accumulator row, a multiple of the vector width
  uint8_t* q;          // packed queries
  float* scores;       // [kScoreRows][kScoreRow]; overwritten by probabilities
  float* acc;          // [kScoreRows][acc_row]
  const AttnNext& next;
  bool streaming;           // prefetch keys and values as streaming (non-temporal) data
  // Score keys of several blocks at once without prefetching: that many streams keep the hardware
  // prefetcher busier than software prefetches do. Used beyond one span (shorter contexts are mostly
  // cached, where software prefetching is better), for caches with kMultiBlock and up to
  // kMultiBlockRows rows.
  bool multi_block;
};

// With more rows there is too much computation between two keys, and V would not be prefetched.
constexpr int kMultiBlockRows = 2, kMultiBlockChunks = 4;

static inline Visible visible(const SpanJob& job, int64_t row) {
  const int64_t pos = job.pos0 + row / job.group;
  const int64_t lo = max64(job.shape.oldest(pos), job.base) - job.base;
  const int64_t hi = min64(job.shape.end(pos), job.base + kSpan) - job.base;
  return hi > lo ? Visible{lo, hi} : Visible{0, 0};
}

// Smallest range containing what `count` rows starting at row0 see; {kSpan, 0}: nothing.
static inline Visible seen_by(const SpanJob& job, int64_t row0, int64_t count) {
  Visible all{kSpan, 0};
  for (int64_t r = 0; r < count; ++r) {
    const Visible see = visible(job, row0 + r);
    if (see.hi > see.lo) all = {min64(all.lo, see.lo), max64(all.hi, see.hi)};
  }
  return all;
}

// Positions that all of the `count` rows starting at row0 see.
static inline Visible seen_by_all(const SpanJob& job, int64_t row0, int64_t count) {
  Visible common{0, kSpan};
  for (int64_t r = 0; r < count; ++r) {
    const Visible see = visible(job, row0 + r);
    common = {max64(common.lo, see.lo), min64(common.hi, see.hi)};
  }
  return common;
}

// The head's data in the block that holds span position t, and t's slot in that block.
static inline const uint8_t* head_at(const SpanJob& job, int64_t t, int64_t* slot) {
  const int64_t position = job.base + t;
  const int64_t block = job.block_table[position / job.kv.block_size];
  *slot = position % job.kv.block_size;
  return head_base(job.kv, job.layout, block, job.kv_head);
}

// K or V scales of an I8 cache.
static inline float* scales_at(const SpanJob& job, int64_t t, bool values) {
  int64_t slot;
  const uint8_t* head = head_at(job, t, &slot);
  const int64_t at = slot + (values ? job.kv.block_size : 0);
  return reinterpret_cast<float*>(const_cast<uint8_t*>(head) + job.layout.scale_offset) + at;
}

// Scales and minima of an I4 cache: of K's first group (the next group is pair_step bytes further), or
// of V.
static inline int64_t pair_step(const SpanJob& job) { return int64_t(job.kv.block_size) * 4; }
static inline const uint8_t* pairs_at(const SpanJob& job, int64_t t, bool values) {
  int64_t slot;
  const uint8_t* head = head_at(job, t, &slot);
  const int64_t group = values ? key_groups(job.kv.head_dim) : 0;
  return head + job.layout.scale_offset + group * pair_step(job) + slot * 4;
}

// Addresses of K for the two 16-token halves of chunk [t, t + 32). A half that nobody sees aliases the
// other one, so that no block outside the table is accessed.
template <class Cache>
static inline void chunk_keys(const SpanJob& job, int64_t t, Visible range,
                              const uint8_t* (&half)[2]) {
  const bool seen[2] = {range.lo < t + kHalf, range.hi > t + kHalf};
  for (int h = 0; h < 2; ++h) {
    if (!seen[h]) continue;
    int64_t slot;
    const uint8_t* head = head_at(job, t + h * kHalf, &slot);
    half[h] = head + slot * Cache::kLaneBytes;
  }
  if (!seen[0]) half[0] = half[1];
  if (!seen[1]) half[1] = half[0];
}

// Whether the tile starting at row0 prefetches: the first tile reads from memory, later ones hit the
// cache.
template <class Cache>
static inline bool prefetches(const SpanJob& job, int64_t row0) {
  return row0 == 0 && !(Cache::kMultiBlock && job.multi_block);
}

// What to prefetch while chunk t is scored: K two chunks further, then the beginning of V.
template <class Cache>
static inline KeyPrefetch chunk_prefetch(const SpanJob& job, int64_t row0, int64_t t, Visible range) {
  KeyPrefetch ahead{{nullptr, nullptr}, 0, job.streaming};
  if (!prefetches<Cache>(job, row0)) return ahead;
  const int64_t end = round_up(range.hi, kChunk), next = t + 2 * kChunk;
  const bool keys = next < end;
  const int64_t first = keys ? next : max64(range.lo / kChunk * kChunk, next - end);
  for (int64_t h = 0; h < 2; ++h) {
    const int64_t at = first + h * kHalf;
    if (at + kHalf <= range.lo || at >= range.hi) continue;
    int64_t slot;
    const uint8_t* head = head_at(job, at, &slot);
    ahead.half[h] = keys ? head + slot * Cache::kLaneBytes
                         : head + job.layout.v_offset +
                               slot / Cache::kDepth * Cache::row_bytes(job.shape.v_dim);
  }
  // One line per step covers V's rows: half a chunk of V has `steps` times kHalf lanes if V is as wide
  // as K. (Otherwise some lines are missed or prefetched needlessly.)
  ahead.step = (keys ? job.kv.block_size : kHalf) * Cache::kLaneBytes;
  if (ahead.half[0] && ahead.half[1] == ahead.half[0] + kHalf * Cache::kLaneBytes &&
      kChunk * Cache::kLaneBytes <= 64)
    ahead.half[1] = nullptr;  // same cache line
  return ahead;
}

// Unscaled scores of C chunks starting at t for R rows; -inf where a row does not see the token. If C >
// 1, all chunks form one tile and nothing is prefetched.
template <class Cache, int R, int C>
static inline void score_chunks(const SpanJob& job, int64_t row0, int64_t t, Visible range,
                                Visible common) {
  using Keys = typename Cache::Keys;
  constexpr int kVecs = kChunk / kLanes, V = C > 1 ? C * kVecs : kScoreVecs;
  const uint8_t* half[C][2];
  for (int c = 0; c < C; ++c) chunk_keys<Cache>(job, t + c * kChunk, range, half[c]);
  const int64_t k_step = job.kv.block_size * Keys::kLaneBytes;
  const int64_t q_row = job.steps * Keys::kQueryBytes;
  const KeyPrefetch ahead = C > 1 ? KeyPrefetch{} : chunk_prefetch<Cache>(job, row0, t, range);
  const int64_t end = t + C * kChunk;
  for (int64_t vec = 0; vec < C * kVecs; vec += V) {
    const uint8_t *k[V], *pairs[V];
    Vf scale[V];
    for (int v = 0; v < V; ++v) {
      const int64_t c = (vec + v) / kVecs, h = (vec + v) % kVecs / kVecsPerHalf;
      const int64_t offset = (vec + v) % kVecsPerHalf * kLanes, chunk = t + c * kChunk;
      k[v] = half[c][h] + offset * Cache::kLaneBytes;
      const bool seen = h == 0 ? range.lo < chunk + kHalf : range.hi > chunk + kHalf;
      if (job.kv.type == KvType::I8)
        scale[v] = seen ? vload(scales_at(job, chunk + h * kHalf, false) + offset) : vzero();
      pairs[v] = nullptr;
      if (job.kv.type == KvType::I4)
        pairs[v] = pairs_at(job, chunk + (seen ? h : 1 - h) * kHalf, false) + offset * 4;
    }
    Vf s[R][V];
    const auto score = [&](const auto& asked) __attribute__((always_inline)) {
      score_tile<Keys, R, V>(k, k_step, pairs, pair_step(job), job.q + row0 * q_row, q_row,
                             job.steps, asked, s);
    };
    if (ahead.half[0] || ahead.half[1]) {
      score(ahead);
    } else {
      score(NoPrefetch{});
    }
    if (job.kv.type == KvType::I8) {
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) s[r][v] = vmul(s[r][v], scale[v]);
      }
    }
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v)
        vstore(job.scores + r * kScoreRow + t + (vec + v) * kLanes, s[r][v]);
    }
  }
  if (t >= common.lo && end <= common.hi) return;
  for (int r = 0; r < R; ++r) {
    const Visible see = visible(job, row0 + r);
    float* row = job.scores + r * kScoreRow;
    for (int64_t at = t; at < end; at += kLanes)
      vstore(row + at, keep_range(vload(row + at), at, see.lo, see.hi, -kInfinity));
  }
}

// Scores of all chunks that any of R rows sees.
template <class Cache, int R>
static inline void score_rows(const SpanJob& job, int64_t row0, Visible range, Visible common) {
  int64_t t = range.lo / kChunk * kChunk;
  if constexpr (Cache::kMultiBlock && R <= kMultiBlockRows) {
    if (job.multi_block)
      for (; t + (kMultiBlockChunks - 1) * kChunk < range.hi; t += kMultiBlockChunks * kChunk)
        score_chunks<Cache, R, kMultiBlockChunks>(job, row0, t, range, common);
  }
  for (; t < range.hi; t += kChunk) score_chunks<Cache, R, 1>(job, row0, t, range, common);
}

// Whether scores are transformed before the exponential. If not, their scale is folded into the
// exponential's factor, which does not change which score is the largest.
static inline bool reshapes(const SpanJob& job) {
  return job.shape.softcap > 0 || job.shape.slopes != nullptr || !(job.shape.scale > 0.0f);
}

// Scales one row's scores and applies softcap and ALiBi slopes. Unseen positions stay -inf.
static void reshape_row(const SpanJob& job, int64_t row, float* scores, Visible see) {
  float steps[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) steps[i] = float(i);
  const int64_t head = job.kv_head * job.group + row % job.group;
  const int64_t distance = job.base - (job.pos0 + row / job.group);
  const Vf slope = vset(job.shape.slopes ? job.shape.slopes[head] : 0.0f);
  const Vf cap = vset(job.shape.softcap), lanes = vload(steps);
  const bool capping = job.shape.softcap > 0;
  for (int64_t t = see.lo / kChunk * kChunk; t < round_up(see.hi, kChunk); t += kLanes) {
    Vf s = vmul(vload(scores + t), vset(job.shape.scale));
    if (capping) s = capped(s, cap);
    s = vfma(slope, vadd(lanes, vset(float(distance + t))), s);
    vstore(scores + t, keep_range(s, t, see.lo, see.hi, -kInfinity));
  }
}

// Replaces scores by probabilities exp(s - m) in place (rounded to bf16 pairs where those are
// multiplied; multiplied by V's scale for int8 and int4 caches). Writes the row's m and l, and `base`:
// the contribution of V's minima, equal for all values of the output.
template <class Cache>
static inline void softmax_row(const SpanJob& job, float* row, Visible see, float* m, float* l,
                               float* base) {
  *base = 0.0f;
  if (see.hi <= see.lo) {
    *m = -kInfinity;
    *l = 0.0f;
    return;
  }
  constexpr int kVecs = kChunk / kLanes;
  const int64_t begin = see.lo / kChunk * kChunk, end = round_up(see.hi, kChunk);
  Vf best[2] = {vset(-kInfinity), vset(-kInfinity)};
  for (int64_t t = begin; t < end; t += kLanes)
    best[t / kLanes % 2] = vmax(best[t / kLanes % 2], vload(row + t));
  const float scale = reshapes(job) ? 1.0f : job.shape.scale, most = vreduce_max(vmax(best[0], best[1]));
  *m = most * scale;
  const Vf largest = vset(most), doublings = vset(scale * 1.44269504088896341f);
  Vf sum = vzero(), minima = vzero();
  for (int64_t t = begin; t < end; t += kChunk) {
    Vf p[kVecs];
    TIDEMILL_UNROLL
    for (int v = 0; v < kVecs; ++v)
      p[v] = vmul(vsub(vload(row + t + v * kLanes), largest), doublings);
    powers_of_two(p);
    TIDEMILL_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = t + v * kLanes;
      sum = vadd(sum, p[v]);
      const bool seen = at + kLanes > see.lo && at < see.hi;
      if (job.kv.type == KvType::I8 && seen)
        p[v] = keep_range(vmul(p[v], vload(scales_at(job, at, true))), at, see.lo, see.hi, 0.0f);
      if (job.kv.type == KvType::I4 && seen) {
        const Vi pair = iload(pairs_at(job, at, true));
        minima = vadd(minima, keep_range(vmul(p[v], pair_odd(pair)), at, see.lo, see.hi, 0.0f));
        p[v] = keep_range(vmul(p[v], pair_even(pair)), at, see.lo, see.hi, 0.0f);
      }
    }
#ifdef TIDEMILL_BF16_DOT
    if constexpr (Cache::kDepth == 2) {
      // Pairs are written at half the offset they are read from, so unread values are never
      // overwritten.
      TIDEMILL_UNROLL
      for (int v = 0; v < kVecs; v += 2)
        istore(row + (t + v * kLanes) / 2, round_bf16_pair(p[v], p[v + 1]));
      continue;
    }
#endif
    TIDEMILL_UNROLL
    for (int v = 0; v < kVecs; ++v) vstore(row + t + v * kLanes, p[v]);
  }
  *l = vreduce_add(sum);
  if (job.kv.type == KvType::I4) *base = vreduce_add(minima);
}

// Row of V for step `s` of the span (one token, or a pair of tokens).
template <class Cache>
static inline const uint8_t* value_row(const SpanJob& job, int64_t s) {
  const int64_t t = s * Cache::kDepth, row = Cache::row_bytes(job.shape.v_dim);
  int64_t slot;
  const uint8_t* head = head_at(job, t, &slot);
  return head + job.layout.v_offset + slot / Cache::kDepth * row;
}

// What to prefetch with V of position t: V `positions` further, and past the end of V the next K. K and
// V of a block have the same size if they have the same width, so each run of V's rows covers the
// corresponding part of K.
template <class Cache>
static inline const uint8_t* value_prefetch(const SpanJob& job, int64_t t, int64_t positions,
                                         Visible all) {
  const int64_t ahead = t + positions;
  if (ahead < all.hi) return value_row<Cache>(job, ahead / Cache::kDepth);
  const AttnNext& next = job.next;
  const int64_t seen = max64(round_up(all.hi, kHalf), all.lo / kHalf * kHalf + positions);
  const int64_t position = next.from / kHalf * kHalf + ahead - seen;
  if (next.block_table == nullptr || position >= next.to) return nullptr;
  const int64_t block = next.block_table[position / job.kv.block_size];
  return head_base(job.kv, job.layout, block, next.kv_head) +
         job.layout.v_offset * (position % job.kv.block_size) / job.kv.block_size;
}

// Steps [from, to) of a single row.
template <class Cache>
static inline void value_alone(const SpanJob& job, int64_t r, Visible see, int64_t from,
                               int64_t to) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(job.scores + r * kScoreRow);
  for (int64_t s = from; s < to; ++s) {
    uint32_t mask = 0xffffffffu;
    if (Cache::kDepth == 2 && 2 * s < see.lo) mask &= 0xffff0000u;
    if (Cache::kDepth == 2 && 2 * s + 1 >= see.hi) mask &= 0x0000ffffu;
    value_edge<Cache>(value_row<Cache>(job, s), p + s * Cache::kQueryBytes, mask,
                      job.acc + r * job.acc_row, job.vectors);
  }
}

// acc = sum of p * V for R rows, 64 positions at a time (they stay in L1): steps that all rows see form
// one tile, the others are computed row by row. Positions ascend for each row.
template <class Cache, int R>
static void value_rows(const SpanJob& job, int64_t row0) {
  constexpr int V = R * 8 <= kAccRegisters ? 8 : R * 4 <= kAccRegisters ? 4 : 2;
  constexpr int64_t D = Cache::kDepth, kRange = 64;
  const Visible all = seen_by(job, row0, R), common = seen_by_all(job, row0, R);
  Visible see[R];
  for (int r = 0; r < R; ++r) see[r] = visible(job, row0 + r);
  __builtin_memset(job.acc, 0, size_t(R * job.acc_row) * 4);
  const int64_t common_from = (common.lo + D - 1) / D, common_to = common.hi / D;
  for (int64_t t = all.lo / kRange * kRange; t < all.hi; t += kRange) {
    const int64_t from = max64(t / D, common_from), to = min64((t + kRange) / D, common_to);
    const int64_t split = max64(from, to);  // == from if no step is visible to all rows
    for (int r = 0; r < R; ++r)
      value_alone<Cache>(job, r, see[r], max64(t, see[r].lo) / D,
                         min64(from < to ? from : kSpan,
                               (min64(t + kRange, see[r].hi) + D - 1) / D));
    if (from >= to) continue;
    ValueRun runs[kRange / kHalf];
    int64_t count = 0;
    for (int64_t s = from; s < to;) {
      const int64_t end = min64(to, (s * D / kHalf + 1) * kHalf / D);
      runs[count++] = {value_row<Cache>(job, s),
                       reinterpret_cast<const uint8_t*>(job.scores) + s * Cache::kQueryBytes,
                       prefetches<Cache>(job, row0) ? value_prefetch<Cache>(job, s * D, kRange, all) : nullptr,
                       end - s};
      s = end;
    }
    value_vectors<Cache, R, V>(runs, count, Cache::row_bytes(job.shape.v_dim), kScoreRow * 4,
                               job.acc, job.acc_row, job.streaming, 0, job.vectors);
    for (int r = 0; r < R; ++r)
      value_alone<Cache>(job, r, see[r], split,
                         (min64(t + kRange, see[r].hi) + D - 1) / D);
  }
}

template <class Cache, int R>
static void span_rows(const SpanJob& job, int64_t row0, float* m, float* l, float* acc) {
  const Visible all = seen_by(job, row0, R), common = seen_by_all(job, row0, R);
  score_rows<Cache, R>(job, row0, all, common);
  if (reshapes(job))
    for (int r = 0; r < R; ++r)
      reshape_row(job, row0 + r, job.scores + r * kScoreRow, visible(job, row0 + r));
  float base[R];
  for (int r = 0; r < R; ++r)
    softmax_row<Cache>(job, job.scores + r * kScoreRow, visible(job, row0 + r), m + row0 + r,
                       l + row0 + r, base + r);
  value_rows<Cache, R>(job, row0);
  const int64_t d = job.shape.v_dim;
  for (int r = 0; r < R; ++r) {
    float* out = acc + (row0 + r) * d;
    __builtin_memcpy(out, job.acc + r * job.acc_row, size_t(d) * 4);
    if (job.kv.type == KvType::I4)
      for (int64_t i = 0; i < d; ++i) out[i] += base[r];
  }
}

template <class Cache, int R>
static inline void dispatch_span(int64_t rows, const SpanJob& job, int64_t row0, float* m,
                                 float* l, float* acc) {
  if (rows == R) {
    span_rows<Cache, R>(job, row0, m, l, acc);
  } else if constexpr (R > 1) {
    dispatch_span<Cache, R - 1>(rows, job, row0, m, l, acc);
  }
}

template <class Cache>
static void span_all(const SpanJob& job, const float* q, int64_t q_stride, int64_t nq, float* m,
                     float* l, float* acc) {
  const int64_t d = job.shape.head_dim;
  for (int64_t row = 0; row < nq * job.group; ++row) {
    const float* source =
        q + row / job.group * q_stride + (job.kv_head * job.group + row % job.group) * d;
    using Keys = typename Cache::Keys;
    uint8_t* out = job.q + row * job.steps * Keys::kQueryBytes;
    if constexpr (Keys::kQueryBytes == 4 * Keys::kDepth) {
      __builtin_memcpy(out, source, size_t(d) * 4);
    } else {
      pack_bf16(source, d, out);
    }
  }
  const int64_t rows = nq * job.group;
  int64_t tiles = (rows + kScoreRows - 1) / kScoreRows;
  for (int64_t row = 0; row < rows; --tiles) {
    const int64_t count = (rows - row + tiles - 1) / tiles;
    dispatch_span<Cache, kScoreRows>(count, job, row, m, l, acc);
    row += count;
  }
}

// Layout of the scratch memory: packed queries, scores, accumulators.
struct ScratchLayout {
  int64_t scores, acc, acc_row, total;
};

static inline ScratchLayout scratch_layout(const AttnShape& shape, int64_t nq) {
  const int64_t rows = nq * (shape.heads / shape.kv_heads), d = shape.head_dim;
  ScratchLayout s;
  s.acc_row = round_up(shape.v_dim, 16);
  s.scores = round_up(rows * d * 4, 64);
  s.acc = s.scores + kScoreRows * kScoreRow * 4;
  s.total = s.acc + round_up(kScoreRows * s.acc_row * 4, 64);
  return s;
}

#ifdef TIDEMILL_AMX
#include "kernels/attention/amx.inl"
#endif

static void attn_span(const AttnShape& shape, const KvLayer& kv, const int32_t* block_table,
                      const float* q, int64_t q_stride, int64_t nq, int64_t pos0, int64_t kv_head,
                      int64_t span, const AttnNext& next, float* m, float* l, float* acc,
                      void* scratch) {
  const ScratchLayout at = scratch_layout(shape, nq);
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
  const bool more = kHasZen5Paths && is_zen5_or_later() && nq * group <= kScoreRows;
  const bool multi_block = more && nq * group <= kMultiBlockRows;
  const SpanJob job{shape,
                    kv,
                    block_table,
                    cache_layout(kv),
                    span * kSpan,
                    kv_head,
                    pos0,
                    group,
                    kv.type == KvType::BF16 || kv.type == KvType::I4 ? d / 2 : d,
                    (shape.v_dim + kLanes - 1) / kLanes,
                    at.acc_row,
                    bytes,
                    reinterpret_cast<float*>(bytes + at.scores),
                    reinterpret_cast<float*>(bytes + at.acc),
                    next,
                    more,
                    multi_block && shape.end(pos0 + nq - 1) - shape.oldest(pos0) > kSpan};
#ifdef TIDEMILL_AMX
  if (is_tiled(kv)) {
    span_tiles(job, q, q_stride, nq, m, l, acc, bytes + at.total);
    return;
  }
#endif
  if (kv.type == KvType::F32) span_all<FloatCache>(job, q, q_stride, nq, m, l, acc);
  if (kv.type == KvType::BF16) span_all<Bf16Cache>(job, q, q_stride, nq, m, l, acc);
  if (kv.type == KvType::I8) span_all<ByteCache>(job, q, q_stride, nq, m, l, acc);
  if (kv.type == KvType::I4) span_all<NibbleCache>(job, q, q_stride, nq, m, l, acc);
}

static int64_t attn_scratch_bytes(const AttnShape& shape, int64_t nq) {
  int64_t bytes = scratch_layout(shape, nq).total;
#ifdef TIDEMILL_AMX
  bytes += tile_scratch_bytes(shape);
#endif
  return bytes;
}

static void attn_merge(int64_t count, int64_t v_dim, float* m, float* l, float* acc,
                       const float* m2, const float* l2, const float* acc2) {
  for (int64_t r = 0; r < count; ++r, acc += v_dim, acc2 += v_dim) {
    if (m2[r] == -kInfinity) continue;  // nothing of the span was visible
    if (m[r] == -kInfinity) {           // first span: same result as below, without exp
      for (int64_t i = 0; i < v_dim; i += kLanes) {
        const int64_t n = v_dim - i;
        vstore_n(acc + i, vadd(vload_n(acc2 + i, n), vzero()), n);
      }
      l[r] = l2[r];
      m[r] = m2[r];
      continue;
    }
    const float largest = m[r] > m2[r] ? m[r] : m2[r];
    const float keep = exp_scalar(m[r] - largest), take = exp_scalar(m2[r] - largest);
    const Vf a = vset(keep), b = vset(take);
    for (int64_t i = 0; i < v_dim; i += kLanes) {
      const int64_t n = v_dim - i;
      vstore_n(acc + i, vfma(vload_n(acc + i, n), a, vmul(vload_n(acc2 + i, n), b)), n);
    }
    l[r] = l[r] * keep + l2[r] * take;
    m[r] = largest;
  }
}

static void attn_finish(int64_t v_dim, float l, const float* acc, float* out) {
  const Vf sum = vset(l);
  for (int64_t i = 0; i < v_dim; i += kLanes)
    vstore_n(out + i, vdiv(vload_n(acc + i, v_dim - i), sum), v_dim - i);
}
