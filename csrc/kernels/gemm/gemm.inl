// Matrix products over packed panels. A register tile is R activation rows x V vectors of output rows.
// Each output element's sum over k is accumulated in ascending order in its own lane, for any R and V.

#define TIDEMILL_UNROLL _Pragma("GCC unroll 16")
// For functions whose sums would otherwise be passed through memory.
#define TIDEMILL_INLINE inline __attribute__((always_inline))

// Activation bytes 4i .. 4i + 3 broadcast to all lanes, as operand of a dot product.
#ifndef TIDEMILL_INT8X4_LANES
using Int8x4 = Vi;
static TIDEMILL_INLINE Int8x4 act_int8x4(const uint8_t* acts, int i) {
  return ibroadcast(acts + 4 * i);
}
#endif

// The same for dot_q8, from what round_act_q8 stored.
#ifndef TIDEMILL_INT8X4_Q8
using Int8x4Q8 = Int8x4;
static TIDEMILL_INLINE Int8x4Q8 act_int8x4_q8(const uint8_t* acts, int i) {
  return act_int8x4(acts, i);
}
#endif

// Whether this table has code paths for is_zen5_or_later().
#ifdef TIDEMILL_BF16_DOT
constexpr bool kHasZen5Paths = true;
#else
constexpr bool kHasZen5Paths = false;
#endif

// Hides the pointer's origin from the compiler, so that it reloads values instead of keeping them in
// registers that are needed for sums.
static TIDEMILL_INLINE const uint8_t* launder_pointer(const uint8_t* p) {
  asm("" : "+r"(p));
  return p;
}

// A panel as input of a register tile; `lane` is the tile's first output row within the panel.
struct TileInput {
  const uint8_t* panel;
  const uint8_t* act;
  int64_t act_stride;
  int64_t k;
  int64_t lane;
  // Data to prefetch while computing: lines [line0, line1) of every block of `next`, divided among a
  // panel's tiles and passes. The number of rows from which this pays depends on the computation per
  // line (kPrefetchRows). Below it the hardware prefetcher handles the single sequential stream better;
  // it only needs to be told of the next page (prefetch_next_page).
  const uint8_t* next;  // the next panel, or kPrefetchBytes ahead; null: none
  int64_t line0, line1;
  bool every_line = false;  // if `next` is null: prefetch every line of the stream itself
};

// The same with `next` prefetched as streaming data (is_zen5_or_later()). Separate types instead of a
// flag, because a test in the loop is not free: with one, six rows of Q6_K took 1.13 times as long.
struct StreamingTile : TileInput {};

// Additionally prefetches K and V with every block of weights.
struct KvPrefetchTile : StreamingTile {
  KvPrefetch* kv_prefetch;
  int64_t kv_lines;
};

// Vectors of output rows per tile. Few rows leave registers free; then twice as many are used, so that
// the panel is read as one stream.
template <class Weights>
constexpr int tile_vecs(int64_t rows) {
  const bool twice = 2 * rows <= Weights::kRows && 2 * Weights::kVecs * kLanes <= kPanel;
  return (twice ? 2 : 1) * Weights::kVecs;
}

// Number of rows from which a tile prefetches weights: `measured` if it reads a panel in one pass. With
// more passes, a tile of more than rows / 2 skips lines within each page, and the hardware detects no
// stream.
constexpr int64_t prefetch_min_rows(int64_t measured, int64_t rows, int64_t vecs) {
  return vecs * kLanes >= kPanel || measured <= rows / 2 ? measured : rows / 2 + 1;
}

// For weights without a scale per group on Zen 5: from this many rows on, every line is prefetched. One
// row already reads at memory speed.
constexpr int64_t kEveryLineRowsUnscaled = 2;

// Lines of K and V to prefetch per block of weights, if each of `tiles` tiles prefetches its share of
// the block's own lines: at most one line per kLineCycles in total, and one per kLeastCycles of these.
// Beyond that, prefetching gains nothing (Zen 5, two threads; docs/kernels.md).
static inline int64_t kv_lines_per_block(const KvPrefetch* of, int64_t block_cycles, int64_t block_lines,
                                   int64_t tiles) {
  constexpr int64_t kLineCycles = 6, kLeastCycles = 16;
  if (of == nullptr || (of->next == of->last && of->at >= of->to)) return 0;
  return max64(0, min64(block_cycles / kLeastCycles,
                        block_cycles / kLineCycles - (block_lines + tiles - 1) / tiles));
}

static TIDEMILL_INLINE void prefetch_kv_lines(const TileInput&) {}
static TIDEMILL_INLINE void prefetch_kv_lines(const KvPrefetchTile& in) {
  KvPrefetch& of = *in.kv_prefetch;
  if (of.at >= of.to) {
    if (of.next == of.last) return;
    of.at = of.base + of.next->from;
    of.to = of.base + of.next->to;
    ++of.next;
  }
  const uint8_t* at = of.at;
  for (int64_t line = 0; line < in.kv_lines; ++line) prefetch(at + line * 64);
  of.at = at + in.kv_lines * 64;
}

static TIDEMILL_INLINE void prefetch_next(const TileInput& in, int64_t at) { prefetch(in.next + at); }
static TIDEMILL_INLINE void prefetch_next(const StreamingTile& in, int64_t at) { prefetch_streaming(in.next + at); }

template <class Input>
static inline void prefetch_block(const Input& in, int64_t block_offset) {
  if (!in.next) return;
  for (int64_t line = in.line0; line < in.line1; ++line) prefetch_next(in, block_offset + line * 64);
}

// Prefetches a few lines of the stream's next page: the hardware prefetcher does not cross 4 KiB pages
// and would restart in each.
constexpr int64_t kPrefetchDistance = 6144;
template <int64_t kLines>
static TIDEMILL_INLINE void prefetch_next_page(const TileInput& in, int64_t block_offset) {
  TIDEMILL_UNROLL
  for (int64_t line = 0; line < kLines; ++line)
    prefetch(in.panel + block_offset + kPrefetchDistance + line * 64);
}
// Prefetches every line, kPrefetchDistance ahead.
template <int64_t kBytes>
static TIDEMILL_INLINE void prefetch_every_line(const uint8_t* at) {
  TIDEMILL_UNROLL
  for (int64_t line = 0; line < kBytes; line += 64) prefetch_streaming(at + kPrefetchDistance + line);
}

template <bool kFirst, class First, class Second>
struct Conditional {
  using Type = First;
};
template <class First, class Second>
struct Conditional<false, First, Second> {
  using Type = Second;
};

// Decoding of 4-bit codes: evenly spaced numbers, or values looked up in a table, as int8 operands of
// dot_q8.
struct EvenSteps {
  static constexpr bool kLookedUp = false;
  static constexpr int kZero = 8;  // zero point of unsigned operands; 0: signed int8
  static constexpr int kLargest = 15;
  static TIDEMILL_INLINE Vf scales(const uint16_t* p) { return vload_half(p); }
};
struct Mxfp4Codes {
  static constexpr bool kLookedUp = true;
  static constexpr int kZero = kPairDots ? 12 : 0;
  static constexpr int kLargest = 24;
  static constexpr const CodeValues& kValues = kMxfp4Values;
  static TIDEMILL_INLINE Vf scales(const uint16_t* p) { return vload_bf16(p); }
};
struct Iq4Codes : EvenSteps {
  static constexpr bool kLookedUp = true;
  static constexpr int kZero = 0;
  static constexpr int kLargest = 255;
  static constexpr const CodeValues& kValues = kIq4Values;
};

// The table's values as operands of a dot product.
template <class Codes>
struct CodeTable {
  uint8_t at[16] = {};
  constexpr CodeTable() {
    for (int i = 0; i < 16; ++i)
      at[i] = Codes::kZero ? uint8_t(Codes::kValues.at[i] + Codes::kZero)
                           : uint8_t(uint8_t(Codes::kValues.at[i]) ^ uint8_t(kQ8Flip));
  }
};
template <class Codes>
static TIDEMILL_INLINE Vi code_table() {
  static constexpr CodeTable<Codes> table;
  return itable(table.at);
}

// Number of int8x4 products with weights up to `largest` that fit in a 16-bit sum of dot_q4 or dot_u6.
constexpr int fitting_quads(int largest) {
  const int quads = kPairDots ? 32767 / (2 * 127 * largest) : 8;
  return quads >= 8 ? 8 : quads >= 4 ? 4 : 2;
}

// -zero * sum of a group's activations.
template <class Codes>
static TIDEMILL_INLINE Vi zero_point_sums(const uint8_t* act) {
  static_assert(Codes::kZero == 8 || Codes::kZero == 12, "as ActGroup has corrections");
  return ibroadcast(act + (Codes::kZero == 8 ? offsetof(ActGroup, correction_q4)
                                             : offsetof(ActGroup, correction_mxfp4)));
}

// 8-bit (kFour false) or 4-bit weights with int8 activations: exact integer sums per group of 32, then
// one fma with the product of both scales.
template <bool kFour, class Codes = EvenSteps>
struct QuantizedWeights {
  static constexpr bool kSteps = kFour && Codes::kZero;  // else int8
  // With 16-bit sums a group is summed in parts; every part has one int8x4 of each nibble.
  static constexpr bool kPairs = kSteps && kPairDots;
  static constexpr int kSumParts = fitting_quads(Codes::kLargest) / 2;
  static constexpr int kRows = kI8Rows, kVecs = kI8Vecs;
  static constexpr int64_t kPrefetchRows = prefetch_min_rows(kFour ? kPrefetchRowsQ4 : kPrefetchRowsQ8, kRows, kVecs);
  static constexpr int64_t kBlockBytes = kFour ? kQ4GroupBytes : kQ8GroupBytes;
  static constexpr int64_t kBlockCycles = 66;  // of a full tile (Zen 5); determines kv_lines
  static constexpr int64_t kEveryLineRows = kFour ? 1 : 3;  // two rows of 8-bit weights get slower
  using Acts = typename Conditional<kPairDots && !kSteps, ActGroupQ8, ActGroup>::Type;

  static TIDEMILL_INLINE const uint8_t* group_at(const uint8_t* panel, int64_t g) {
    return panel + g * kBlockBytes;
  }
  template <class Input>
  static TIDEMILL_INLINE void prefetch_group(const Input& in, int64_t g) {
    prefetch_kv_lines(in);
    if (in.next) {
      prefetch_block(in, g * kBlockBytes);
    } else if (in.every_line) {
      prefetch_every_line<kBlockBytes>(group_at(in.panel, g));
    } else {
      prefetch_next_page<kBlockBytes / 512>(in, g * kBlockBytes);
    }
  }

  // Applies scales to a tile's integer sums: `load` a group's scales, then `add` its sums.
  template <int R, int V>
  struct Scaled {
    Vf scale[V];

    TIDEMILL_INLINE void load(const TileInput& in, int64_t g) {
      const uint16_t* scales =
          reinterpret_cast<const uint16_t*>(group_at(in.panel, g) + in.lane * 2);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) scale[v] = Codes::scales(scales + v * kLanes);
    }
    TIDEMILL_INLINE void add(const TileInput& in, int64_t g, int r, int v, Vi dot,
                             Vf (&sum)[R][V]) const {
      const Acts* acts = reinterpret_cast<const Acts*>(in.act + r * in.act_stride) + g;
      const Vf both = vmul(scale[v], vset(acts->scale));
      sum[r][v] = vfma(vconvert(dot), both, sum[r][v]);
    }
  };

  template <int R, int V>
  static TIDEMILL_INLINE void group(const TileInput& in, int64_t g, Vi (&dot)[R][V]) {
    const uint8_t* quads = in.panel + g * kBlockBytes + 64 + in.lane * 4;
    const uint8_t* act = in.act + g * int64_t(sizeof(Acts));
    const auto start = [&](int r) {
      const uint8_t* a = act + r * in.act_stride;
      if constexpr (kSteps && kQ4Offset) {
        return zero_point_sums<Codes>(a);
      } else {
        return !kSteps && kQ8Offset ? ibroadcast(a + offsetof(Acts, correction_q8)) : iset(0);
      }
    };
    const auto each = [](auto of) {
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) of(r, v);
      }
    };
    Vi pairs[R][V];
    auto& to = kPairs ? pairs : dot;
    TIDEMILL_UNROLL
    for (int part = 0; part < (kFour ? 4 : 8); ++part) {
      if (kPairs && part % kSumParts == 0) each([&](int r, int v) { pairs[r][v] = iset(0); });
      if (!kPairs && part == 0) each([&](int r, int v) { dot[r][v] = start(r); });
      Vi w[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) w[v] = iload(quads + part * 128 + v * kLanes * 4);
      TIDEMILL_UNROLL
      for (int half = 0; half < (kFour ? 2 : 1); ++half) {
        Vi u[V];
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) {
          u[v] = !kFour ? w[v] : half ? nibble_high(w[v]) : nibble_low(w[v]);
          if constexpr (Codes::kLookedUp) u[v] = ilook_up(code_table<Codes>(), u[v]);
        }
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          const uint8_t* q = act + r * in.act_stride + offsetof(Acts, q);
          const int quad = part + half * 4;
          if constexpr (kSteps) {
            const Int8x4 a = act_int8x4(q, quad);
            TIDEMILL_UNROLL
            for (int v = 0; v < V; ++v) to[r][v] = dot_q4(to[r][v], u[v], a);
          } else {
            const Int8x4Q8 a = act_int8x4_q8(q, quad);
            TIDEMILL_UNROLL
            for (int v = 0; v < V; ++v) to[r][v] = dot_q8(to[r][v], u[v], a);
          }
        }
      }
      if (kPairs && (part + 1) % kSumParts == 0)
        each([&](int r, int v) {
          dot[r][v] = iadd(part < kSumParts ? start(r) : dot[r][v], ipair_sums(pairs[r][v]));
        });
    }
  }

  template <int R, int V, class Input>
  static TIDEMILL_INLINE void accumulate(const Input& in, Vf (&sum)[R][V]) {
    for (int64_t g = 0; g < in.k / kGroup; ++g) {
      prefetch_group(in, g);
      Vi dot[R][V];
      group<R, V>(in, g, dot);
      Scaled<R, V> scaled;
      scaled.load(in, g);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) scaled.add(in, g, r, v, dot[r][v], sum);
      }
    }
  }
};

#include "kernels/gemm/kquants.inl"
#include "kernels/gemm/legacy.inl"

// int8 with a scale per output row (channel.inl): the value of an exact sum over all of k.
static TIDEMILL_INLINE Vf channel_value(const uint8_t* panel, const uint8_t* act, int64_t lane,
                                        Vi dot) {
  const Vf scale = vset(load_as<float>(act));
  return vmul(vconvert(dot), vmul(vload(reinterpret_cast<const float*>(panel) + lane), scale));
}

struct ChannelWeights {
  static constexpr int kRows = kI8Rows, kVecs = kI8Vecs;
  static constexpr int64_t kPrefetchRows = prefetch_min_rows(kPrefetchRowsQ8, kRows, kVecs);
  static constexpr int64_t kBlockBytes = kTileDepthI8 * kPanel;
  static constexpr int64_t kBlockCycles = 105;
  static constexpr int64_t kEveryLineRows = kEveryLineRowsUnscaled;

  template <int R, int V, class Input>
  static TIDEMILL_INLINE void accumulate(const Input& in, Vf (&sum)[R][V]) {
    Vi dot[R][V];
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const uint8_t* act = in.act + r * in.act_stride;
      const Vi start = kQ8Offset ? ibroadcast(act + offsetof(ActRow, correction_q8)) : iset(0);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = start;
    }
    const uint8_t* block = in.panel + kChannelScales;
    const uint8_t* act = in.act + offsetof(ActRow, q);
    for (int64_t k0 = 0; k0 < in.k; k0 += kTileDepthI8, act += kTileDepthI8 * kActBytesQ8) {
      prefetch_kv_lines(in);
      prefetch_block(in, block - in.panel);
      TIDEMILL_UNROLL
      for (int quad = 0; quad < kTileDepthI8 / 4; ++quad) {
        Vi w[V];
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) w[v] = iload(block + quad * 128 + (in.lane + v * kLanes) * 4);
        if (in.every_line) prefetch_every_line<128>(block + quad * 128);
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          const Int8x4Q8 a = act_int8x4_q8(act + r * in.act_stride, quad);
          TIDEMILL_UNROLL
          for (int v = 0; v < V; ++v) dot[r][v] = dot_q8(dot[r][v], w[v], a);
        }
      }
      block += kBlockBytes;
    }
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v)
        sum[r][v] = channel_value(in.panel, in.act + r * in.act_stride, in.lane + v * kLanes, dot[r][v]);
    }
  }
};

// Float weights of type kType. kPairs: bf16 activations and bf16 weights. bf16 and f16 weights are
// converted exactly if activations are float.
template <WeightType kType, bool kPairs>
struct FloatWeights {
  static constexpr int kRows = kFloatRows, kVecs = kFloatVecs;
  static constexpr int64_t kPrefetchRows = prefetch_min_rows(kPrefetchRowsFloat, kRows, kVecs);
  static constexpr bool kToFloat = kType == WeightType::BF16 && !kPairs;
  static constexpr int64_t kStepBytes = kType == WeightType::F16 ? kPanel * 2 : kPanel * 4;

  static constexpr int64_t kBlockSteps = 16;
  static constexpr int64_t kBlockBytes = kBlockSteps * kStepBytes;
  static constexpr int64_t kBlockCycles = 200;
  static constexpr int64_t kEveryLineRows = kEveryLineRowsUnscaled;

  // Weights of one k or of a pair; if a pair is converted to float, kSecond selects its element.
  template <bool kSecond>
  static TIDEMILL_INLINE Vf weight(const uint8_t* p) {
    if constexpr (kType == WeightType::F16) return vload_half(reinterpret_cast<const uint16_t*>(p));
    if constexpr (kToFloat) return kSecond ? pair_odd(iload(p)) : pair_even(iload(p));
    return as_float(iload(p));
  }
  static TIDEMILL_INLINE void multiply(Vf& sum, Vf w, Vf a) {
#ifdef TIDEMILL_BF16_DOT
    if constexpr (kPairs) {
      sum = dot_bf16(sum, as_int(w), as_int(a));
      return;
    }
#endif
    vadd_product(sum, w, a);
  }

  // The larger operand stays in memory: the sums of a full tile leave few registers.
  template <bool kSecond, int R, int V>
  static TIDEMILL_INLINE void step(const uint8_t* weights, const uint8_t* act, int64_t act_stride,
                                   Vf (&sum)[R][V]) {
    const auto activation = [&](int r) {
      return vset(load_as<float>(act + r * act_stride + (kSecond ? 4 : 0)));
    };
    constexpr int64_t kVecBytes = kStepBytes / kPanel * kLanes;
    if constexpr (R < V) {
      Vf a[R];
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) a[r] = activation(r);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) {
        const Vf w = weight<kSecond>(weights + v * kVecBytes);
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) multiply(sum[r][v], w, a[r]);
      }
    } else {
      Vf w[V];
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) w[v] = weight<kSecond>(weights + v * kVecBytes);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vf a = activation(r);
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) multiply(sum[r][v], w[v], a);
      }
    }
    if constexpr (kToFloat && !kSecond) step<true>(launder_pointer(weights), act, act_stride, sum);
  }

  template <int R, int V, class Input>
  static inline void accumulate(const Input& in, Vf (&sum)[R][V]) {
    const int64_t steps = kType == WeightType::BF16 ? (in.k + 1) / 2 : in.k;
    const uint8_t* weights = in.panel + in.lane * (kStepBytes / kPanel);
    const uint8_t* act = in.act;
    for (int64_t s = 0; s < steps; s += kBlockSteps) {
      prefetch_kv_lines(in);
      prefetch_block(in, s * kStepBytes);
      const int64_t end = min64(steps, s + kBlockSteps);
      for (int64_t i = s; i < end; ++i, weights += kStepBytes, act += kToFloat ? 8 : 4) {
        if (in.every_line) prefetch_every_line<kStepBytes>(weights);
        step<false>(weights, act, in.act_stride, sum);
      }
    }
  }
};

// Prefetches the destination of a tile's sums for writing: rows are far apart, in lines that are not in
// L1, and the stores would otherwise wait for them one by one.
template <int R, int V>
static TIDEMILL_INLINE void prefetch_sums(float* out, int64_t ldo) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    TIDEMILL_UNROLL
    for (int lane = 0; lane < V * kLanes; lane += 16) prefetch_write(out + r * ldo + lane);
  }
}

// R rows of one panel: sums, bias, store (rows of the panel past n are not written).
template <class Weights, int R, class Input>
static __attribute__((noinline)) void panel_rows(Input in, int64_t valid, const float* bias, float* out,
                                     int64_t ldo) {
  constexpr int V = tile_vecs<Weights>(R);
  constexpr int64_t kPasses = (kPanel + V * kLanes - 1) / (V * kLanes);
  const int64_t line0 = in.line0, lines = in.line1 - in.line0;
  for (in.lane = 0; in.lane < min64(kPanel, valid); in.lane += V * kLanes) {
    const int64_t pass = in.lane / (V * kLanes);
    in.line0 = line0 + pass * lines / kPasses;
    in.line1 = line0 + (pass + 1) * lines / kPasses;
    prefetch_sums<R, V>(out + in.lane, ldo);
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

template <class Weights, int R, class Input>
static inline void dispatch_rows(int64_t rows, const Input& in, int64_t valid,
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
                        int64_t ldo, bool alone, KvPrefetch* kv_prefetch) {
  const bool more = is_zen5_or_later();
  const bool prefetches_weights = m_rows >= (alone ? max64(2, Weights::kPrefetchRows) : Weights::kPrefetchRows);
  // A tile that reads the panel in one pass prefetches within the stream; otherwise later passes find
  // the panel in the cache, and the next panel is prefetched.
  const bool streams = m_rows <= Weights::kRows && tile_vecs<Weights>(m_rows) * kLanes >= kPanel;
  const int64_t ahead = streams ? min64(kPrefetchBytes, w.panel_bytes) : w.panel_bytes;
  constexpr int64_t kLines = Weights::kBlockBytes / 64;
  const int64_t tiles = (m_rows + Weights::kRows - 1) / Weights::kRows;
  [[maybe_unused]] const int64_t kv_lines =
      kv_lines_per_block(kv_prefetch, Weights::kBlockCycles * m_rows / (tiles * Weights::kRows), kLines, tiles);
  const bool every_line = more && !prefetches_weights && m_rows >= Weights::kEveryLineRows;
  for (int64_t p = p0; p < p1; ++p) {
    TileInput in{w.data + p * w.panel_bytes, acts, act_stride, w.k, 0, nullptr, 0, 0, every_line};
    const int64_t n0 = p * kPanel;
    if (prefetches_weights && n0 + kPanel < w.n) in.next = in.panel + ahead;
    int64_t m = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t rows = (m_rows - m + tiles - tile - 1) / (tiles - tile);
      in.act = acts + m * act_stride;
      float* const first = out + m * ldo + n0;
      in.line0 = tile * kLines / tiles;
      in.line1 = (tile + 1) * kLines / tiles;
      const auto dispatch = [&](const auto& input) {
        dispatch_rows<Weights, Weights::kRows>(rows, input, w.n - n0, bias ? bias + n0 : nullptr,
                                               first, ldo);
      };
      m += rows;
      if constexpr (kHasZen5Paths) {
        if (more && kv_lines > 0) {
          dispatch(KvPrefetchTile{{in}, kv_prefetch, kv_lines});
          continue;
        }
        if (more && prefetches_weights) {
          dispatch(StreamingTile{in});
          continue;
        }
      }
      dispatch(in);
    }
  }
}

#ifdef TIDEMILL_AMX
#include "kernels/gemm/amx.inl"
#endif
// Kernels for int8 panels without AMX.
#ifdef TIDEMILL_I8MM
#include "kernels/gemm/i8mm.inl"
using Q8Product = QuantizedX8<false>;
template <class Codes>
using Q4Product = QuantizedX8<true, Codes>;
using I8Product = ChannelX8;
#else
using Q8Product = QuantizedWeights<false>;
template <class Codes>
using Q4Product = QuantizedWeights<true, Codes>;
using I8Product = ChannelWeights;
#endif

static void gemm(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride, int64_t m_rows,
                 int64_t p0, int64_t p1, const float* bias, float* out, int64_t ldo, bool alone,
                 KvPrefetch* kv_prefetch) {
  auto* run = &gemm_panels<FloatWeights<WeightType::F32, false>>;
  if (w.type == WeightType::MXFP4) run = &gemm_panels<Q4Product<Mxfp4Codes>>;
  if (w.type == WeightType::I8) run = &gemm_panels<I8Product>;
  if (w.type == WeightType::F16) run = &gemm_panels<FloatWeights<WeightType::F16, false>>;
  if (w.type == WeightType::BF16) run = &gemm_panels<FloatWeights<WeightType::BF16, false>>;
#ifdef TIDEMILL_AMX
  if (auto* tiles = tiles_of(w, m_rows)) run = tiles;
#else
  if (w.type == WeightType::Q8_0) run = &gemm_panels<Q8Product>;
  if (w.type == WeightType::Q4_0) run = &gemm_panels<Q4Product<EvenSteps>>;
  if (w.type == WeightType::IQ4_NL) run = &gemm_panels<Q4Product<Iq4Codes>>;
  if (w.type == WeightType::Q4_K) run = &gemm_panels<KWeights<WeightType::Q4_K>>;
  if (w.type == WeightType::Q5_K) run = &gemm_panels<KWeights<WeightType::Q5_K>>;
  if (w.type == WeightType::Q6_K) run = &gemm_panels<KWeights<WeightType::Q6_K>>;
  if (w.type == WeightType::Q4_1) run = &gemm_panels<LegacyWeights<WeightType::Q4_1>>;
  if (w.type == WeightType::Q5_0) run = &gemm_panels<LegacyWeights<WeightType::Q5_0>>;
  if (w.type == WeightType::Q5_1) run = &gemm_panels<LegacyWeights<WeightType::Q5_1>>;
#ifdef TIDEMILL_BF16_DOT
  if (w.act == ActType::BF16) run = &gemm_panels<FloatWeights<WeightType::BF16, true>>;
#endif
#endif
  run(w, acts, act_stride, m_rows, p0, p1, bias, out, ldo, alone, kv_prefetch);
}
