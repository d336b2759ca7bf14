// Register tiles of attention, over four ways to hold K, V and what multiplies them. A step is one
// depth of the dot products; kLaneBytes what a lane of K or V takes, kQueryBytes what a step takes
// of a query or of probabilities.

struct FloatCache {  // float K and V
  static constexpr int kDepth = 1, kLaneBytes = 4, kQueryBytes = 4;
  using Stored = Vf;
  using Weight = Vf;
  static inline Stored load(const uint8_t* p) { return vload(reinterpret_cast<const float*>(p)); }
  static inline Stored load_masked(const uint8_t* p, uint32_t) { return load(p); }
  static inline Weight broadcast(const uint8_t* p) { return vset(load_as<float>(p)); }
  static inline Vf mac(Vf acc, Stored a, Weight b) { return vfma(a, b, acc); }
};

struct ByteCache : FloatCache {  // int8; their scales join scores and probabilities
  static constexpr int kLaneBytes = 1;
  static inline Stored load(const uint8_t* p) {
    return vload_s8(reinterpret_cast<const int8_t*>(p));
  }
  static inline Stored load_masked(const uint8_t* p, uint32_t) { return load(p); }
};

struct FloatPair {
  Vf even, odd;
};

struct WideCache {  // bf16 pairs, widened; float queries and probabilities
  static constexpr int kDepth = 2, kLaneBytes = 4, kQueryBytes = 8;
  using Stored = FloatPair;
  using Weight = FloatPair;
  static inline Stored load_masked(const uint8_t* p, uint32_t mask) {
    const Vi pair = iand(iload(p), iset(int32_t(mask)));
    return {pair_even(pair), pair_odd(pair)};
  }
  static inline Stored load(const uint8_t* p) {
    const Vi pair = iload(p);
    return {pair_even(pair), pair_odd(pair)};
  }
  static inline Weight broadcast(const uint8_t* p) {
    return {vset(load_as<float>(p)), vset(load_as<float>(p + 4))};
  }
  static inline Vf mac(Vf acc, Stored a, Weight b) {
    return vfma(a.odd, b.odd, vfma(a.even, b.even, acc));
  }
};

#ifdef TIDEMILL_BF16_DOT
struct PairCache {  // bf16 pairs against queries and probabilities rounded to bf16 pairs
  static constexpr int kDepth = 2, kLaneBytes = 4, kQueryBytes = 4;
  using Stored = Vi;
  using Weight = Vi;
  static inline Stored load(const uint8_t* p) { return iload(p); }
  static inline Stored load_masked(const uint8_t* p, uint32_t mask) {
    return iand(iload(p), iset(int32_t(mask)));
  }
  static inline Weight broadcast(const uint8_t* p) { return ibroadcast(p); }
  static inline Vf mac(Vf acc, Stored a, Weight b) { return dot_bf16(acc, a, b); }
};
using Bf16Cache = PairCache;
#else
using Bf16Cache = WideCache;
#endif
// A half-chunk is 16 tokens of one block; a chunk two of them, possibly of two blocks.
constexpr int64_t kHalf = 16;
constexpr int64_t kChunk = 32;
constexpr int64_t kVecsPerHalf = kHalf / kLanes;

// Lines to bring closer while a tile computes, one of each per step: blocks are scattered, and the
// hardware does not find the next one.
struct Ahead {
  const uint8_t* half[2];  // null: nothing
  int64_t step;
};

// scores of R query rows against V vectors of tokens: sum over steps, ascending.
template <class Cache, int R, int V>
static inline void score_tile(const uint8_t* const* k, int64_t k_step, const uint8_t* q,
                              int64_t q_row, int64_t steps, Ahead ahead, Vf (&s)[R][V]) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) s[r][v] = vzero();
  }
  for (int64_t i = 0; i < steps; ++i) {
    typename Cache::Stored key[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) key[v] = Cache::load(k[v] + i * k_step);
    if (ahead.half[0]) prefetch(ahead.half[0] + i * ahead.step);
    if (ahead.half[1]) prefetch(ahead.half[1] + i * ahead.step);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto query = Cache::broadcast(q + r * q_row + i * Cache::kQueryBytes);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) s[r][v] = Cache::mac(s[r][v], key[v], query);
    }
  }
}

// One run of V steps: `v` is the first step's row, rows `v_step` bytes apart; `p` the first step's
// probability of row 0, rows `p_row` bytes apart; `ahead` a row to bring closer with it, or null.
struct ValueRun {
  const uint8_t* v;
  const uint8_t* p;
  const uint8_t* ahead;
  int64_t steps;
};

// acc[r][lane ..] += p * V over the runs in order, V vectors of the head dimension at once.
template <class Cache, int R, int V>
static inline void value_tile(const ValueRun* runs, int64_t count, int64_t v_step, int64_t p_row,
                              float* acc, int64_t acc_row) {
  Vf sum[R][V];
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = vload(acc + r * acc_row + v * kLanes);
  }
  for (int64_t c = 0; c < count; ++c) {
    const uint8_t* row = runs[c].v;
    const uint8_t* p = runs[c].p;
    const int64_t ahead = runs[c].ahead ? runs[c].ahead - row : 0;
    for (int64_t i = 0; i < runs[c].steps; ++i, row += v_step, p += Cache::kQueryBytes) {
      if (ahead) {
        constexpr int kVecsPerLine = 64 / (kLanes * Cache::kLaneBytes);
        TIDEMILL_UNROLL
        for (int v = 0; v < V; v += kVecsPerLine)
          prefetch(row + ahead + v * kLanes * Cache::kLaneBytes);
      }
      typename Cache::Stored value[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) value[v] = Cache::load(row + v * kLanes * Cache::kLaneBytes);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto weight = Cache::broadcast(p + r * p_row);
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = Cache::mac(sum[r][v], value[v], weight);
      }
    }
  }
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) vstore(acc + r * acc_row + v * kLanes, sum[r][v]);
  }
}

// All `vectors` of the head dimension, V at a time and then fewer.
template <class Cache, int R, int V>
static inline void value_vectors(const ValueRun* runs, int64_t count, int64_t v_step,
                                 int64_t p_row, float* acc, int64_t acc_row, int64_t first,
                                 int64_t vectors) {
  ValueRun shifted[4];
  for (; first + V <= vectors; first += V) {
    for (int64_t c = 0; c < count; ++c) {
      shifted[c] = runs[c];
      shifted[c].v += first * kLanes * Cache::kLaneBytes;
      if (shifted[c].ahead) shifted[c].ahead += first * kLanes * Cache::kLaneBytes;
    }
    value_tile<Cache, R, V>(shifted, count, v_step, p_row, acc + first * kLanes, acc_row);
  }
  if constexpr (V > 1)
    value_vectors<Cache, R, V / 2>(runs, count, v_step, p_row, acc, acc_row, first, vectors);
}

// One step of one row, with the V values of tokens it does not see cleared by `mask`: an unseen
// slot may hold anything, a NaN included, and must not be multiplied even by zero.
template <class Cache>
static inline void value_edge(const uint8_t* row, const uint8_t* p, uint32_t mask, float* acc,
                              int64_t vectors) {
  const auto weight = Cache::broadcast(p);
  for (int64_t v = 0; v < vectors; ++v) {
    const auto value = Cache::load_masked(row + v * kLanes * Cache::kLaneBytes, mask);
    vstore(acc + v * kLanes, Cache::mac(vload(acc + v * kLanes), value, weight));
  }
}
