// Recurrent mixers, token by token: a token's arithmetic does not depend on how the sequence is split.

static void conv_token(const float* const* rows, int64_t conv_kernel, const float* weight,
                       const float* bias, int64_t n, float* out) {
  for (int64_t c = 0; c < n; c += kLanes) {
    const int64_t left = n - c;
    Vf sum = bias ? vload_n(bias + c, left) : vzero();
    for (int64_t j = 0; j < conv_kernel; ++j)
      sum = vfma(vload_n(weight + j * n + c, left), vload_n(rows[j] + c, left), sum);
    vstore_n(out + c, silu(sum), left);
  }
}

// Vectors of state columns: whole ones, or a single one with the `left` values at a row's end.
template <bool kWhole>
static inline Vf scan_load(const float* p, int64_t left) {
  return kWhole ? vload(p) : vload_n(p, left);
}

template <bool kWhole>
static inline void scan_store(float* p, Vf v, int64_t left) {
  if (kWhole) vstore(p, v);
  else vstore_n(p, v, left);
}

// Columns [column, column + kVecs * kLanes) of the state over all tokens: they stay in L1, and columns
// are independent of each other.
template <int kVecs, bool kWhole>
static inline void scan_columns(const Scan& s, int64_t column) {
  const int64_t left = s.value_dim - column;
  for (int64_t t = 0; t < s.count; ++t) {
    const int64_t at = t * s.stride;
    const float *q = s.q + at, *k = s.k + at, *v = s.v + at + column;
    const float* from = (t == 0 ? s.from : s.to) + column;
    const Vf decay = vset(s.decay[at]), gain = vset(s.gain[at]);
    Vf known[kVecs], u[kVecs], sum[kVecs];
    for (int j = 0; j < kVecs; ++j) known[j] = sum[j] = vzero();
    if (s.delta) {
      for (int64_t i = 0; i < s.key_dim; ++i) {
        const Vf ki = vset(k[i]);
        for (int j = 0; j < kVecs; ++j) {
          const Vf old = scan_load<kWhole>(from + i * s.value_dim + j * kLanes, left);
          known[j] = vfma(ki, vmul(decay, old), known[j]);
        }
      }
    }
    for (int j = 0; j < kVecs; ++j)
      u[j] = vmul(gain, vsub(scan_load<kWhole>(v + j * kLanes, left), known[j]));
    float* const to = s.to + column;
    for (int64_t i = 0; i < s.key_dim; ++i) {
      const Vf ki = vset(k[i]), qi = vset(q[i]);
      for (int j = 0; j < kVecs; ++j) {
        const Vf old = scan_load<kWhole>(from + i * s.value_dim + j * kLanes, left);
        const Vf now = vfma(ki, u[j], vmul(decay, old));
        scan_store<kWhole>(to + i * s.value_dim + j * kLanes, now, left);
        sum[j] = vfma(qi, now, sum[j]);
      }
    }
    for (int j = 0; j < kVecs; ++j) {
      if (s.skip != 0.0f)
        sum[j] = vfma(vset(s.skip), scan_load<kWhole>(v + j * kLanes, left), sum[j]);
      scan_store<kWhole>(s.out + at + column + j * kLanes, sum[j], left);
    }
  }
}

static void scan_head(const Scan& shape) {
  Scan s = shape;
  if (s.from == nullptr) {
    __builtin_memset(s.to, 0, size_t(s.key_dim * s.value_dim) * sizeof(float));
    s.from = s.to;
  }
  int64_t column = 0;
  for (; column + 4 * kLanes <= s.value_dim; column += 4 * kLanes) scan_columns<4, true>(s, column);
  for (; column + kLanes <= s.value_dim; column += kLanes) scan_columns<1, true>(s, column);
  if (column < s.value_dim) scan_columns<1, false>(s, column);
}
