// Register tiles of attention. A step is one depth of the dot products: one value (float cache) or
// one pair (bf16 cache); both fill a 32-bit lane, so the two share all code but `mac`.

struct FloatCache {
  static constexpr int kDepth = 1;
  static inline Vf mac(Vf acc, Vi a, Vi b) { return vfma(as_float(a), as_float(b), acc); }
};
struct PairCache {
  static constexpr int kDepth = 2;
  static inline Vf mac(Vf acc, Vi a, Vi b) { return dot_bf16(acc, a, b); }
};

// A half-chunk is 16 tokens of one block; a chunk two of them, possibly of two blocks.
constexpr int64_t kHalf = 16;
constexpr int64_t kChunk = 32;
constexpr int64_t kVecsPerHalf = kHalf / kLanes;

// scores of R query rows against V vectors of tokens: sum over steps, ascending.
template <class Cache, int R, int V>
static inline void score_tile(const uint8_t* const* k, int64_t k_step, const uint8_t* q,
                              int64_t q_row, int64_t steps, Vf (&s)[R][V]) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) s[r][v] = vzero();
  }
  for (int64_t i = 0; i < steps; ++i) {
    Vi key[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) key[v] = iload(k[v] + i * k_step);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vi query = ibroadcast(q + r * q_row + i * 4);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) s[r][v] = Cache::mac(s[r][v], key[v], query);
    }
  }
}

// One run of V steps: `v` is the first step's row, rows `v_step` bytes apart; `p` the first step's
// probability of row 0, rows `p_row` bytes apart.
struct ValueRun {
  const uint8_t* v;
  const uint8_t* p;
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
    for (int64_t i = 0; i < runs[c].steps; ++i, row += v_step, p += 4) {
      Vi value[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) value[v] = iload(row + v * kLanes * 4);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vi weight = ibroadcast(p + r * p_row);
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
      shifted[c].v += first * kLanes * 4;
    }
    value_tile<Cache, R, V>(shifted, count, v_step, p_row, acc + first * kLanes, acc_row);
  }
  if constexpr (V > 1)
    value_vectors<Cache, R, V / 2>(runs, count, v_step, p_row, acc, acc_row, first, vectors);
}

// One step of one row, with the V values of tokens it does not see cleared by `mask`: an unseen
// slot may hold anything, a NaN included, and must not be multiplied even by zero.
template <class Cache>
static inline void value_edge(const uint8_t* row, const uint8_t* p, int32_t mask, float* acc,
                              int64_t vectors) {
  const Vi weight = ibroadcast(p), keep = iset(mask);
  for (int64_t v = 0; v < vectors; ++v) {
    const Vi value = iand(iload(row + v * kLanes * 4), keep);
    vstore(acc + v * kLanes, Cache::mac(vload(acc + v * kLanes), value, weight));
  }
}
