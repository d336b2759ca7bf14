// int8 products with Arm matrix instructions: smmla multiplies two activation rows with two output rows
// over eight values of k, adding to 2 x 2 sums. int8 panels are laid out accordingly (kDotBytes = 8).
// The sums are exact; what follows is the arithmetic of the vector kernels. An odd last row is paired
// with itself.

// Sums of R rows and V vectors of output rows: [pair of rows][pair of output rows], in order
// {row 0 out 0, row 0 out 1, row 1 out 0, row 1 out 1}.
template <int R, int V>
struct PairSums {
  static constexpr int kPairs = (R + 1) / 2;
  Vi pair[kPairs][2 * V];

  static TIDEMILL_INLINE Vi both(Vi upper, Vi lower) {
    return vreinterpretq_s32_s64(
        vtrn1q_s64(vreinterpretq_s64_s32(upper), vreinterpretq_s64_s32(lower)));
  }
  static constexpr int second(int p) { return 2 * p + 1 < R ? 2 * p + 1 : 2 * p; }

  // start(row): initial value of the row's sums.
  template <class Start>
  TIDEMILL_INLINE void begin(Start start) {
    TIDEMILL_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const Vi from = both(start(2 * p), start(second(p)));
      TIDEMILL_UNROLL
      for (int i = 0; i < 2 * V; ++i) pair[p][i] = from;
    }
  }

  // Sixteen values of k: `acts` points at row 0, `weights(half, i)` are eight values of output rows 2i
  // and 2i + 1.
  template <class X8>
  TIDEMILL_INLINE void multiply(const uint8_t* acts, int64_t act_stride, X8 weights) {
    int8x16_t act[kPairs][2];
    TIDEMILL_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const auto upper = vreinterpretq_s64_s32(iload(acts + 2 * p * act_stride));
      const auto lower = vreinterpretq_s64_s32(iload(acts + second(p) * act_stride));
      act[p][0] = vreinterpretq_s8_s64(vtrn1q_s64(upper, lower));
      act[p][1] = vreinterpretq_s8_s64(vtrn2q_s64(upper, lower));
    }
    TIDEMILL_UNROLL
    for (int half = 0; half < 2; ++half) {
      TIDEMILL_UNROLL
      for (int i = 0; i < 2 * V; ++i) {
        const int8x16_t w = as_bytes(weights(half, i));
        TIDEMILL_UNROLL
        for (int p = 0; p < kPairs; ++p) pair[p][i] = vmmlaq_s32(pair[p][i], act[p][half], w);
      }
    }
  }

  // The sums of row r and vector v of output rows.
  TIDEMILL_INLINE Vi sums(int r, int v) const {
    const auto first = vreinterpretq_s64_s32(pair[r / 2][2 * v]);
    const auto next = vreinterpretq_s64_s32(pair[r / 2][2 * v + 1]);
    return vreinterpretq_s32_s64(r % 2 ? vtrn2q_s64(first, next) : vtrn1q_s64(first, next));
  }
};

// QuantizedWeights with smmla.
template <bool kFour, class Codes = EvenSteps>
struct QuantizedX8 : QuantizedWeights<kFour, Codes> {
  using Vectors = QuantizedWeights<kFour, Codes>;
  static constexpr int kRows = 4, kVecs = 2;

  template <int R, int V>
  static TIDEMILL_INLINE void group(const TileInput& in, int64_t g, PairSums<R, V>& dot) {
    constexpr int64_t kX8 = kPanel * kDotBytes;
    const uint8_t* weights = Vectors::group_at(in.panel, g) + 64 + in.lane * kDotBytes;
    const uint8_t* act = in.act + g * int64_t(sizeof(ActGroup));
    const uint8_t* q = act + offsetof(ActGroup, q);
    if constexpr (kFour) {
      dot.begin([&](int r) {
        if constexpr (Vectors::kSteps) {
          return zero_point_sums<Codes>(act + r * in.act_stride);
        } else {
          return iset(0);
        }
      });
      const auto bytes = [&](int half, int i) { return iload(weights + half * kX8 + i * 16); };
      const auto values = [](Vi nibbles) {
        if constexpr (Codes::kLookedUp) return ilook_up(code_table<Codes>(), nibbles);
        return nibbles;
      };
      dot.multiply(q, in.act_stride,
                   [&](int half, int i) { return values(nibble_low(bytes(half, i))); });
      dot.multiply(q + 16, in.act_stride,
                   [&](int half, int i) { return values(nibble_high(bytes(half, i))); });
    } else {
      dot.begin([](int) { return iset(0); });
      TIDEMILL_UNROLL
      for (int part = 0; part < 2; ++part)
        dot.multiply(q + part * 16, in.act_stride, [&](int half, int i) {
          return iload(weights + (2 * part + half) * kX8 + i * 16);
        });
    }
  }

  template <int R, int V, class Input>
  static TIDEMILL_INLINE void accumulate(const Input& in, Vf (&sum)[R][V]) {
    for (int64_t g = 0; g < in.k / kGroup; ++g) {
      Vectors::prefetch_group(in, g);
      PairSums<R, V> dot;
      group<R, V>(in, g, dot);
      typename Vectors::template Scaled<R, V> scaled;
      scaled.load(in, g);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) scaled.add(in, g, r, v, dot.sums(r, v), sum);
      }
    }
  }
};

// ChannelWeights with smmla.
struct ChannelX8 : ChannelWeights {
  static constexpr int kRows = 8, kVecs = 2;

  template <int R, int V, class Input>
  static TIDEMILL_INLINE void accumulate(const Input& in, Vf (&sum)[R][V]) {
    constexpr int64_t kX8 = kPanel * kDotBytes;
    PairSums<R, V> dot;
    dot.begin([](int) { return iset(0); });
    const uint8_t* block = in.panel + kChannelScales;
    const uint8_t* act = in.act + offsetof(ActRow, q);
    for (int64_t k0 = 0; k0 < in.k; k0 += kTileDepthI8) {
      prefetch_block(in, block - in.panel);
      for (int part = 0; part < kTileDepthI8 / 16; ++part, act += 16, block += 2 * kX8)
        dot.multiply(act, in.act_stride, [&](int half, int i) {
          return iload(block + half * kX8 + in.lane * kDotBytes + i * 16);
        });
    }
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v)
        sum[r][v] = channel_value(in.panel, in.act + r * in.act_stride, in.lane + v * kLanes,
                                  dot.sums(r, v));
    }
  }
};
