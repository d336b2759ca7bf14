// Low-rank changes of a matrix (adapters): u = scale * A x, then y = (y + B u) * factor + shift.
//
// Rows are gathered: the caller lists those with the adapter. One output is one chain of sums in a fixed
// order, whatever the tile: of A's rows over k, in lanes that are added at the end; of B over the rank.

// Values of x in a row of packed activations that a row of A is multiplied with: float, or pairs of
// bfloat16 on the tables that pack them so.
template <bool kWide>
struct LowRankRow;

template <>
struct LowRankRow<true> {
  static constexpr int64_t kStep = kLanes, kBytes = 4, kActBytes = 4;
  using Value = Vf;
  static inline Vf weights(const uint8_t* a, int64_t at) {
    return vload(reinterpret_cast<const float*>(a) + at);
  }
  static inline Vf act(const uint8_t* x, int64_t at) {
    return vload(reinterpret_cast<const float*>(x) + at);
  }
  static inline Vf add(Vf sum, Vf a, Vf x) { return vfma(a, x, sum); }
};

template <>
struct LowRankRow<false> {
#ifdef TIDEMILL_BF16_DOT
  static constexpr int64_t kStep = 2 * kLanes;
  using Value = Vi;
  static inline Vi weights(const uint8_t* a, int64_t at) { return iload(a + 2 * at); }
  static inline Vi act(const uint8_t* x, int64_t at) { return iload(x + 2 * at); }
  static inline Vf add(Vf sum, Vi a, Vi x) { return dot_bf16(sum, a, x); }
#else
  static constexpr int64_t kStep = kLanes;
  using Value = Vf;
  static inline Vf weights(const uint8_t* a, int64_t at) {
    return vload_bf16(reinterpret_cast<const uint16_t*>(a) + at);
  }
  static inline Vf act(const uint8_t* x, int64_t at) {
    if (kBf16Pairs) return vload_bf16(reinterpret_cast<const uint16_t*>(x) + at);
    return vload(reinterpret_cast<const float*>(x) + at);
  }
  static inline Vf add(Vf sum, Vf a, Vf x) { return vfma(a, x, sum); }
#endif
};

// kRanks rows of A times kRows rows of activations.
template <bool kWide, int kRanks, int kRows>
static TIDEMILL_INLINE void low_rank_down_tile(const LowRank& w, const uint8_t* const* x, int64_t r,
                                               float* const* u) {
  using Row = LowRankRow<kWide>;
  const uint8_t* const a = w.a + r * w.a_stride;
  Vf sums[kRanks][kRows];
  for (int i = 0; i < kRanks; ++i)
    for (int j = 0; j < kRows; ++j) sums[i][j] = vzero();
  const int64_t k = round_up(w.k, Row::kStep);
  for (int64_t at = 0; at < k; at += Row::kStep) {
    typename Row::Value acts[kRows];
    for (int j = 0; j < kRows; ++j) acts[j] = Row::act(x[j], at);
    for (int i = 0; i < kRanks; ++i) {
      const auto weights = Row::weights(a + i * w.a_stride, at);
      for (int j = 0; j < kRows; ++j) sums[i][j] = Row::add(sums[i][j], weights, acts[j]);
    }
  }
  for (int i = 0; i < kRanks; ++i)
    for (int j = 0; j < kRows; ++j) u[j][r + i] = vreduce_add(sums[i][j]) * w.scale;
}

template <bool kWide, int kRows>
static TIDEMILL_INLINE void low_rank_down_rows(const LowRank& w, const uint8_t* const* x, int64_t r0,
                                               int64_t r1, float* const* u) {
  int64_t r = r0;
  for (; r + 4 <= r1; r += 4) low_rank_down_tile<kWide, 4, kRows>(w, x, r, u);
  for (; r < r1; ++r) low_rank_down_tile<kWide, 1, kRows>(w, x, r, u);
}

template <bool kWide>
static void low_rank_down_all(const LowRank& w, const uint8_t* acts, int64_t act_stride,
                              const int32_t* rows, int64_t count, int64_t r0, int64_t r1, float* u) {
  constexpr int kRows = kAccRegisters >= 16 ? 4 : 2;
  const uint8_t* x[kRows];
  float* to[kRows];
  int64_t i = 0;
  const auto take = [&](int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
      x[j] = acts + rows[i + j] * act_stride;
      to[j] = u + (i + j) * w.rank;
    }
    i += n;
  };
  while (i + kRows <= count) {
    take(kRows);
    low_rank_down_rows<kWide, kRows>(w, x, r0, r1, to);
  }
  while (i < count) {
    take(1);
    low_rank_down_rows<kWide, 1>(w, x, r0, r1, to);
  }
}

static void low_rank_down(const LowRank& w, const uint8_t* acts, int64_t act_stride,
                          const int32_t* rows, int64_t count, int64_t r0, int64_t r1, float* u) {
  if (w.wide) {
    low_rank_down_all<true>(w, acts, act_stride, rows, count, r0, r1, u);
  } else {
    low_rank_down_all<false>(w, acts, act_stride, rows, count, r0, r1, u);
  }
}

template <bool kWide>
static inline Vf low_rank_b(const uint8_t* b, int64_t at) {
  if constexpr (kWide) {
    return vload(reinterpret_cast<const float*>(b) + at);
  } else {
    return vload_bf16(reinterpret_cast<const uint16_t*>(b) + at);
  }
}

// Two vectors of a panel's outputs, from `lane` on, of kRows rows.
template <bool kWide, int kRows>
static TIDEMILL_INLINE void low_rank_up_tile(const LowRank& w, const uint8_t* b, int64_t n0, int64_t lane,
                                             const float* const* u, float* const* y) {
  constexpr int kVecs = 2;
  Vf sums[kRows][kVecs];
  for (int j = 0; j < kRows; ++j)
    for (int v = 0; v < kVecs; ++v) sums[j][v] = vzero();
  for (int64_t r = 0; r < w.rank; ++r) {
    Vf weights[kVecs];
    for (int v = 0; v < kVecs; ++v) weights[v] = low_rank_b<kWide>(b, r * kPanel + lane + v * kLanes);
    for (int j = 0; j < kRows; ++j) {
      const Vf factor = vset(u[j][r]);
      for (int v = 0; v < kVecs; ++v) sums[j][v] = vfma(weights[v], factor, sums[j][v]);
    }
  }
  for (int v = 0; v < kVecs; ++v) {
    const int64_t at = n0 + lane + v * kLanes, left = w.n - at;
    if (left <= 0) return;
    for (int j = 0; j < kRows; ++j) {
      float* const out = y[j] + lane + v * kLanes;
      Vf value = vadd(vload_n(out, left), sums[j][v]);
      if (w.factor) value = vmul(value, vload(w.factor + at));
      if (w.shift) value = vadd(value, vload(w.shift + at));
      vstore_n(out, value, left);
    }
  }
}

template <bool kWide>
static void low_rank_up_all(const LowRank& w, const float* u, const int32_t* rows, int64_t count,
                            int64_t row0, int64_t p0, int64_t p1, float* out, int64_t ldo) {
  constexpr int kRows = kAccRegisters >= 16 ? 8 : 4;
  const int64_t panel_bytes = w.rank * kPanel * (kWide ? 4 : 2);
  for (int64_t p = p0; p < p1; ++p) {
    const uint8_t* const b = w.b + p * panel_bytes;
    const float* from[kRows];
    float* y[kRows];
    for (int64_t i = 0; i < count;) {
      const int64_t n = count - i >= kRows ? kRows : 1;
      for (int64_t j = 0; j < n; ++j) {
        from[j] = u + (i + j) * w.rank;
        y[j] = out + (rows[i + j] - row0) * ldo + (p - p0) * kPanel;
      }
      for (int64_t lane = 0; lane < kPanel; lane += 2 * kLanes) {
        if (n == kRows) {
          low_rank_up_tile<kWide, kRows>(w, b, p * kPanel, lane, from, y);
        } else {
          low_rank_up_tile<kWide, 1>(w, b, p * kPanel, lane, from, y);
        }
      }
      i += n;
    }
  }
}

static void low_rank_up(const LowRank& w, const float* u, const int32_t* rows, int64_t count,
                        int64_t row0, int64_t p0, int64_t p1, float* out, int64_t ldo) {
  if (w.wide) {
    low_rank_up_all<true>(w, u, rows, count, row0, p0, p1, out, ldo);
  } else {
    low_rank_up_all<false>(w, u, rows, count, row0, p0, p1, out, ldo);
  }
}
