// Matrix products over packed panels. A tile is R activation rows x V vectors of output rows; each
// output element's sum over k runs in ascending order in its own lane, whatever R and V are.

#define TIDEMILL_UNROLL _Pragma("GCC unroll 16")

// One panel seen by a tile: `lane` is the first of its output rows within the panel.
struct TileInput {
  const uint8_t* panel;
  const uint8_t* act;
  int64_t act_stride;
  int64_t k;
  int64_t lane;
};

// 8-bit (kFour false) or 4-bit weights against int8 activations: exact integer sums per group of
// 32, then one fma with the product of both scales.
template <bool kFour>
struct QuantizedWeights {
  static constexpr int kRows = kI8Rows, kVecs = kI8Vecs;

  template <int R, int V>
  static inline void group(const TileInput& in, int64_t g, Vi (&dot)[R][V]) {
    const uint8_t* quads = in.panel + g * (kFour ? kQ4GroupBytes : kQ8GroupBytes) + 64 + in.lane * 4;
    const uint8_t* act = in.act + g * int64_t(sizeof(ActGroup));
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const uint8_t* a = act + r * in.act_stride;
      Vi start = iset(0);
      if (kFour && kQ4Offset) start = ibroadcast(a + offsetof(ActGroup, correction_q4));
      if (!kFour && kQ8Offset) start = ibroadcast(a + offsetof(ActGroup, correction_q8));
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = start;
    }
    TIDEMILL_UNROLL
    for (int part = 0; part < (kFour ? 4 : 8); ++part) {
      Vi w[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) w[v] = iload(quads + part * 128 + v * kLanes * 4);
      TIDEMILL_UNROLL
      for (int half = 0; half < (kFour ? 2 : 1); ++half) {
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          const Vi a = ibroadcast(act + r * in.act_stride + offsetof(ActGroup, q) + part * 4 +
                                  half * 16);
          TIDEMILL_UNROLL
          for (int v = 0; v < V; ++v) {
            if (kFour) {
              dot[r][v] = dot_q4(dot[r][v], half ? nibble_high(w[v]) : nibble_low(w[v]), a);
            } else {
              dot[r][v] = dot_q8(dot[r][v], w[v], a);
            }
          }
        }
      }
    }
  }

  template <int R, int V>
  static inline void accumulate(const TileInput& in, Vf (&sum)[R][V]) {
    for (int64_t g = 0; g < in.k / kGroup; ++g) {
      Vi dot[R][V];
      group<R, V>(in, g, dot);
      const uint16_t* scales = reinterpret_cast<const uint16_t*>(
          in.panel + g * (kFour ? kQ4GroupBytes : kQ8GroupBytes) + in.lane * 2);
      Vf scale[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) scale[v] = vload_half(scales + v * kLanes);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vf a = vset(load_as<float>(in.act + r * in.act_stride +
                                         g * int64_t(sizeof(ActGroup))));
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v)
          sum[r][v] = vfma(vconvert(dot[r][v]), vmul(scale[v], a), sum[r][v]);
      }
    }
  }
};

// Float weights. kType names the panel; kPairs: bf16 activations against bf16 weights. bf16 and
// f16 weights against float activations are widened, which is exact.
template <WeightType kType, bool kPairs>
struct FloatWeights {
  static constexpr int kRows = kFloatRows, kVecs = kFloatVecs;
  static constexpr bool kWiden = kType == WeightType::BF16 && !kPairs;
  static constexpr int64_t kStepBytes = kType == WeightType::F16 ? kPanel * 2 : kPanel * 4;

  template <int R, int V>
  static inline void accumulate(const TileInput& in, Vf (&sum)[R][V]) {
    const int64_t steps = kType == WeightType::BF16 ? (in.k + 1) / 2 : in.k;
    const uint8_t* weights = in.panel + in.lane * (kStepBytes / kPanel);
    const uint8_t* act = in.act;
    for (int64_t s = 0; s < steps; ++s, weights += kStepBytes, act += kWiden ? 8 : 4) {
      Vi w[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) {
        if (kType == WeightType::F16) {
          w[v] = as_int(vload_half(reinterpret_cast<const uint16_t*>(weights) + v * kLanes));
        } else {
          w[v] = iload(weights + v * kLanes * 4);
        }
      }
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vi a = ibroadcast(act + r * in.act_stride);
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) {
          if (kPairs) {
            sum[r][v] = dot_bf16(sum[r][v], w[v], a);
          } else if (kWiden) {
            sum[r][v] = vfma(pair_even(w[v]), as_float(a), sum[r][v]);
          } else {
            sum[r][v] = vfma(as_float(w[v]), as_float(a), sum[r][v]);
          }
        }
        if (kWiden) {
          const Vf odd = vset(load_as<float>(act + r * in.act_stride + 4));
          TIDEMILL_UNROLL
          for (int v = 0; v < V; ++v) sum[r][v] = vfma(pair_odd(w[v]), odd, sum[r][v]);
        }
      }
    }
  }
};

// R rows of one panel: sums, bias, store (rows of the panel past n are not written).
template <class Weights, int R>
static void panel_rows(TileInput in, int64_t valid, const float* bias, float* out, int64_t ldo) {
  constexpr int V = Weights::kVecs;
  for (in.lane = 0; in.lane < min64(kPanel, valid); in.lane += V * kLanes) {
    Vf sum[R][V];
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) sum[r][v] = vzero();
    }
    Weights::template accumulate<R, V>(in, sum);
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) {
      const int64_t lane = in.lane + v * kLanes;
      const int64_t count = valid - lane;
      const Vf b = bias ? vload_n(bias + lane, count) : vzero();
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vf y = bias ? vadd(sum[r][v], b) : sum[r][v];
        if (count >= kLanes) {
          vstore(out + r * ldo + lane, y);
        } else {
          vstore_n(out + r * ldo + lane, y, count);
        }
      }
    }
  }
}

template <class Weights, int R>
static inline void dispatch_rows(int64_t rows, const TileInput& in, int64_t valid,
                                 const float* bias, float* out, int64_t ldo) {
  if (rows == R) {
    panel_rows<Weights, R>(in, valid, bias, out, ldo);
  } else if constexpr (R > 1) {
    dispatch_rows<Weights, R - 1>(rows, in, valid, bias, out, ldo);
  }
}

template <class Weights>
static void gemm_panels(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride,
                        int64_t m_rows, int64_t p0, int64_t p1, const float* bias, float* out,
                        int64_t ldo) {
  for (int64_t p = p0; p < p1; ++p) {
    TileInput in{w.data + p * w.panel_bytes, acts, act_stride, w.k, 0};
    const int64_t n0 = p * kPanel;
    int64_t tiles = (m_rows + Weights::kRows - 1) / Weights::kRows;
    for (int64_t m = 0; m < m_rows; --tiles) {
      const int64_t rows = (m_rows - m + tiles - 1) / tiles;
      in.act = acts + m * act_stride;
      dispatch_rows<Weights, Weights::kRows>(rows, in, w.n - n0, bias ? bias + n0 : nullptr,
                                             out + m * ldo + n0, ldo);
      m += rows;
    }
  }
}

static void gemm(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride, int64_t m_rows,
                 int64_t p0, int64_t p1, const float* bias, float* out, int64_t ldo) {
  auto* run = &gemm_panels<FloatWeights<WeightType::F32, false>>;
  if (w.type == WeightType::Q8_0) run = &gemm_panels<QuantizedWeights<false>>;
  if (w.type == WeightType::Q4_0) run = &gemm_panels<QuantizedWeights<true>>;
  if (w.type == WeightType::F16) run = &gemm_panels<FloatWeights<WeightType::F16, false>>;
  if (w.type == WeightType::BF16) {
    run = w.act == ActType::BF16 ? &gemm_panels<FloatWeights<WeightType::BF16, true>>
                                 : &gemm_panels<FloatWeights<WeightType::BF16, false>>;
  }
  run(w, acts, act_stride, m_rows, p0, p1, bias, out, ldo);
}
