// Register tiles of attention for the five KV representations. A step is one unit of depth of the dot
// products; kLaneBytes is the size of a lane of K or V, kQueryBytes the size of one step of a query or
// of probabilities. Keys names the key representation if it differs. kMultiBlock: supports
// SpanJob::multi_block.

// Keys whose scale is not part of the sum. kGroupSteps: steps that share a scale.
struct PlainKeys {
  static constexpr int64_t kGroupSteps = int64_t(1) << 40;
  struct Scale {};
  static inline Scale scale(const uint8_t*) { return {}; }
  static constexpr bool kMultiBlock = false;
};

// V rows whose vectors are contiguous, kBytes per lane.
template <int kBytes>
struct DenseRows {
  static constexpr int kLaneBytes = kBytes;
  static constexpr int kVecsPerLine = 64 / (kLanes * kBytes);
  static inline int64_t row_bytes(int64_t v_dim) { return v_dim * kBytes; }
  static inline int64_t vector_at(int64_t v) { return v * kLanes * kBytes; }
};

struct Floats {  // single float values
  static constexpr int kDepth = 1, kQueryBytes = 4, kParts = 1;
  using Lanes = Vf;
  template <int kPart>
  static TIDEMILL_INLINE Vf broadcast(const uint8_t* p) {
    return vset(load_as<float>(p + 4 * kPart));
  }
  static TIDEMILL_INLINE void mac(Vf& acc, Vf a, Vf b) { vadd_product(acc, a, b); }
};

struct FloatPairs : Floats {  // pairs: first all lanes' even values, then the odd ones
  static constexpr int kDepth = 2, kQueryBytes = 8, kParts = 2;
};

struct FloatCache : PlainKeys, Floats, DenseRows<4> {  // float32
  using Keys = FloatCache;
  static TIDEMILL_INLINE Vf load(const uint8_t* p) {
    return vload(reinterpret_cast<const float*>(p));
  }
  template <int>
  static TIDEMILL_INLINE Vf key(const uint8_t* p, Scale) { return load(p); }
  template <int>
  static TIDEMILL_INLINE Vf value(const uint8_t* row, int64_t v) {
    return load(row + vector_at(v));
  }
};

// int8; the scales are applied to scores and probabilities.
struct ByteCache : PlainKeys, Floats, DenseRows<1> {
  using Keys = ByteCache;
  static TIDEMILL_INLINE Vf load(const uint8_t* p) {
    return vload_s8(reinterpret_cast<const int8_t*>(p));
  }
  template <int>
  static TIDEMILL_INLINE Vf key(const uint8_t* p, Scale) { return load(p); }
  template <int>
  static TIDEMILL_INLINE Vf value(const uint8_t* row, int64_t v) {
    return load(row + vector_at(v));
  }
};

struct NibbleKeys : FloatPairs {  // a byte holds a pair of values, dequantized on load
  static constexpr int kLaneBytes = 1;
  static constexpr int64_t kGroupSteps = kKvGroup / kDepth;
  struct Scale {
    Vf scale, minimum;
  };
  static inline Scale scale(const uint8_t* pairs) {
    const Vi pair = iload(pairs);
    return {pair_even(pair), pair_odd(pair)};
  }
  template <int kPart>
  static TIDEMILL_INLINE Vf key(const uint8_t* p, const Scale& s) {
    return vfma(kPart ? vload_high_nibbles(p) : vload_low_nibbles(p), s.scale, s.minimum);
  }
};

// int4: V's scale is applied to the probabilities, its minima are added at the end.
struct NibbleCache : Floats {
  static constexpr int kLaneBytes = 1;
  static constexpr int kVecsPerLine = 2 * 64 / kLanes;
  static constexpr bool kMultiBlock = false;
  using Keys = NibbleKeys;
  static inline int64_t row_bytes(int64_t v_dim) { return nibble_row(v_dim); }
  static inline int64_t vector_at(int64_t v) { return v * kLanes / 32 * 16 + v * kLanes % 16; }
  template <int>
  static TIDEMILL_INLINE Vf value(const uint8_t* row, int64_t v) {
    const uint8_t* p = row + vector_at(v);
    return v * kLanes & 16 ? vload_high_nibbles(p) : vload_low_nibbles(p);
  }
};

struct Bf16AsFloatCache : PlainKeys, FloatPairs, DenseRows<4> {  // bf16 pairs converted to float
  using Keys = Bf16AsFloatCache;
  template <int kPart>
  static TIDEMILL_INLINE Vf to_float(Vi pair) {
    return kPart ? pair_odd(pair) : pair_even(pair);
  }
  template <int kPart>
  static TIDEMILL_INLINE Vf key(const uint8_t* p, Scale) { return to_float<kPart>(iload(p)); }
  template <int kPart>
  static TIDEMILL_INLINE Vf value(const uint8_t* row, int64_t v) {
    return to_float<kPart>(iload(row + vector_at(v)));
  }
  template <int kPart>
  static TIDEMILL_INLINE Vf value_masked(const uint8_t* row, int64_t v, uint32_t mask) {
    return to_float<kPart>(iand(iload(row + vector_at(v)), iset(int32_t(mask))));
  }
};

#ifdef TIDEMILL_BF16_DOT
// bf16 pairs, multiplied with queries and probabilities rounded to bf16 pairs.
struct Bf16PairCache : PlainKeys, DenseRows<4> {
  static constexpr int kDepth = 2, kQueryBytes = 4, kParts = 1;
  static constexpr bool kMultiBlock = true;
  using Keys = Bf16PairCache;
  using Lanes = Vi;
  template <int>
  static TIDEMILL_INLINE Vi key(const uint8_t* p, Scale) { return iload(p); }
  template <int>
  static TIDEMILL_INLINE Vi value(const uint8_t* row, int64_t v) {
    return iload(row + vector_at(v));
  }
  template <int>
  static TIDEMILL_INLINE Vi value_masked(const uint8_t* row, int64_t v, uint32_t mask) {
    return iand(value<0>(row, v), iset(int32_t(mask)));
  }
  template <int>
  static TIDEMILL_INLINE Vi broadcast(const uint8_t* p) { return ibroadcast(p); }
  static TIDEMILL_INLINE void mac(Vf& acc, Vi a, Vi b) { acc = dot_bf16(acc, a, b); }
};
using Bf16Cache = Bf16PairCache;
#else
using Bf16Cache = Bf16AsFloatCache;
#endif

template <int kNumber>
struct PartOf {
  static constexpr int value = kNumber;
};

// One step of R x V sums: += stored(part, v) * weight(part, r) for each part. The smaller operand is
// kept in registers, because the sums leave few.
template <class Kind, int kPart, int R, int V, class Stored, class Weight>
static TIDEMILL_INLINE void tile_step(Stored stored, Weight weight, Vf (&sum)[R][V]) {
  using Part = PartOf<kPart>;
  if constexpr (R < V) {
    typename Kind::Lanes w[R];
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) w[r] = weight(Part{}, r);
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto value = stored(Part{}, v);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) Kind::mac(sum[r][v], value, w[r]);
    }
  } else {
    typename Kind::Lanes value[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) value[v] = stored(Part{}, v);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto w = weight(Part{}, r);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) Kind::mac(sum[r][v], value[v], w);
    }
  }
  if constexpr (kPart + 1 < Kind::kParts) tile_step<Kind, kPart + 1>(stored, weight, sum);
}

// A half-chunk is 16 tokens of one block; a chunk is two halves, possibly of different blocks.
constexpr int64_t kHalf = 16;
constexpr int64_t kChunk = 32;
constexpr int64_t kVecsPerHalf = kHalf / kLanes;

// Lines to prefetch while a tile is computed, one per half and step: blocks are scattered, so the
// hardware prefetcher does not find the next one.
struct KeyPrefetch {
  const uint8_t* half[2];  // null: nothing
  int64_t step;
  bool streaming;
};

// `streaming`: non-temporal, see is_zen5_or_later().
static TIDEMILL_INLINE void prefetch_kv(const uint8_t* at, bool streaming) {
  streaming ? prefetch_streaming(at) : prefetch(at);
}

// Prefetches one step's lines. NoPrefetch is a separate type, because the address computation would
// cost 12 rows the registers of their sums.
struct NoPrefetch {};
static TIDEMILL_INLINE void prefetch_step(const NoPrefetch&, int64_t) {}
static TIDEMILL_INLINE void prefetch_step(const KeyPrefetch& prefetch, int64_t i) {
  if (prefetch.half[0]) prefetch_kv(prefetch.half[0] + i * prefetch.step, prefetch.streaming);
  if (prefetch.half[1]) prefetch_kv(prefetch.half[1] + i * prefetch.step, prefetch.streaming);
}

// Scores of R query rows against V vectors of tokens; sums over steps ascend. `pairs`: scales of each
// vector's first group, later groups are pair_step bytes further (only for Keys with scales).
template <class Keys, int R, int V, class Prefetch>
static inline void score_tile(const uint8_t* const* k, int64_t k_step, const uint8_t* const* pairs,
                              int64_t pair_step, const uint8_t* q, int64_t q_row, int64_t steps,
                              const Prefetch& prefetch, Vf (&s)[R][V]) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) s[r][v] = vzero();
  }
  for (int64_t first = 0, group = 0; first < steps; first += Keys::kGroupSteps, ++group) {
    typename Keys::Scale scale[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) scale[v] = Keys::scale(pairs[v] + group * pair_step);
    for (int64_t i = first; i < min64(steps, first + Keys::kGroupSteps); ++i) {
      prefetch_step(prefetch, i);
      const uint8_t* query = q + i * Keys::kQueryBytes;
      tile_step<Keys, 0>(
          [&](auto part, int v) __attribute__((always_inline)) {
            return Keys::template key<part.value>(k[v] + i * k_step, scale[v]);
          },
          [&](auto part, int r) __attribute__((always_inline)) {
            return Keys::template broadcast<part.value>(query + r * q_row);
          },
          s);
    }
  }
}

// A run of V steps: `v` is the first step's row, rows are `v_step` bytes apart; `p` is the first step's
// probability of row 0, rows are `p_row` bytes apart; `prefetch` is a row to prefetch with it, or null.
struct ValueRun {
  const uint8_t* v;
  const uint8_t* p;
  const uint8_t* prefetch;
  int64_t steps;
};

// acc[r][lane ..] += p * V over the runs in order, for vectors [part * V, (part + 1) * V) of the head
// dimension.
template <class Cache, int R, int V>
static inline void value_tile(const ValueRun* runs, int64_t count, int64_t v_step, int64_t p_row,
                              float* acc, int64_t acc_row, bool streaming, int64_t part) {
  const int64_t first = part * V;
  acc += first * kLanes;
  Vf sum[R][V];
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = vload(acc + r * acc_row + v * kLanes);
  }
  for (int64_t c = 0; c < count; ++c) {
    const uint8_t* row = runs[c].v;
    const uint8_t* p = runs[c].p;
    const int64_t prefetch = runs[c].prefetch ? runs[c].prefetch - row : 0;
    for (int64_t i = 0; i < runs[c].steps; ++i, row += v_step, p += Cache::kQueryBytes) {
      if (prefetch) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; v += Cache::kVecsPerLine)
          prefetch_kv(row + prefetch + Cache::vector_at(first + v), streaming);
      }
      tile_step<Cache, 0>(
          [&](auto part, int v) __attribute__((always_inline)) {
            return Cache::template value<part.value>(part.value ? launder_pointer(row) : row, first + v);
          },
          [&](auto part, int r) __attribute__((always_inline)) { return Cache::template broadcast<part.value>(p + r * p_row); },
          sum);
    }
  }
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) vstore(acc + r * acc_row + v * kLanes, sum[r][v]);
  }
}

// All `vectors` of the head dimension: V at a time, then fewer.
template <class Cache, int R, int V>
static inline void value_vectors(const ValueRun* runs, int64_t count, int64_t v_step,
                                 int64_t p_row, float* acc, int64_t acc_row, bool streaming,
                                 int64_t first, int64_t vectors) {
  for (; first + V <= vectors; first += V)
    value_tile<Cache, R, V>(runs, count, v_step, p_row, acc, acc_row, streaming, first / V);
  if constexpr (V > 1)
    value_vectors<Cache, R, V / 2>(runs, count, v_step, p_row, acc, acc_row, streaming, first, vectors);
}

// One step of one row with V cleared by `mask` for tokens it does not see: an unseen slot may hold
// anything, even NaN, and must not be multiplied even by zero.
template <class Cache>
static inline void value_edge(const uint8_t* row, const uint8_t* p, uint32_t mask, float* acc,
                              int64_t vectors) {
  for (int64_t v = 0; v < vectors; ++v) {
    Vf sum[1][1] = {{vload(acc + v * kLanes)}};
    tile_step<Cache, 0>(
        [&](auto part, int) __attribute__((always_inline)) {
          if constexpr (Cache::kDepth == 2) {
            return Cache::template value_masked<part.value>(row, v, mask);
          } else {
            return Cache::template value<part.value>(row, v);
          }
        },
        [&](auto part, int) __attribute__((always_inline)) { return Cache::template broadcast<part.value>(p); }, sum);
    vstore(acc + v * kLanes, sum[0][0]);
  }
}
