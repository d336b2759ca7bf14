// Q4_1, Q5_0 and Q5_1 with int8 activations: exact integer sums per group of 32, then
//   (d * sum(q * a) + m * sum(a)) * activations' scale
// Q5_0 has q - 16 instead of m, which is part of the integer sum.
template <WeightType kType>
struct LegacyWeights {
  using Layout = LegacyLayout<kType>;
  static constexpr int kRows = kI8Rows, kVecs = kI8Vecs;
  static constexpr int64_t kPrefetchRows = prefetch_min_rows(kPrefetchRowsQ4, kRows, kVecs);
  static constexpr int64_t kBlockBytes = Layout::kGroupBytes;
  static constexpr int64_t kBlockCycles = 66;
  static constexpr int64_t kEveryLineRows = 1;
  static constexpr int kQuads = fitting_quads((16 << Layout::kHighBits) - 1);

  template <class Input>
  static TIDEMILL_INLINE void prefetch_group(const Input& in, int64_t g) {
    prefetch_kv_lines(in);
    if (in.next) {
      prefetch_block(in, g * kBlockBytes);
    } else if (in.every_line) {
      prefetch_every_line<kBlockBytes>(in.panel + g * kBlockBytes);
    } else {
      prefetch_next_page<kBlockBytes / 512>(in, g * kBlockBytes);
    }
  }

  template <int T, int R, int V>
  static TIDEMILL_INLINE void dot_quad(const TileInput& in, const uint8_t* group, const uint8_t* q,
                                       Vi (&dot)[R][V]) {
    Vi w[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) w[v] = code_quad<Layout, T>(group, (in.lane + v * kLanes) * 4);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Int8x4 a = act_int8x4(q + r * in.act_stride, T);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = dot_u6(dot[r][v], w[v], a);
    }
  }

  // -16 * sum of a group's activations for Q5_0.
  static TIDEMILL_INLINE Vi start(const ActGroup* act) {
    if constexpr (Layout::kMins) return iset(0);
    return ishift_left<1>(ibroadcast(&act->correction_q4));
  }

  template <int R, int V>
  static TIDEMILL_INLINE void set(Vi (&dot)[R][V], const ActGroup* const (&acts)[R], bool started) {
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vi from = started ? start(acts[r]) : iset(0);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = from;
    }
  }

  // Exact sums of a group.
  template <int R, int V>
  static TIDEMILL_INLINE void group_sums(const TileInput& in, const uint8_t* group,
                                         const ActGroup* const (&acts)[R], Vi (&sums)[R][V]) {
    const uint8_t* q = reinterpret_cast<const uint8_t*>(acts[0]->q);
    Vi dot[R][V];
    set(dot, acts, !kPairDots);
    dot_quad<0>(in, group, q, dot), dot_quad<4>(in, group, q, dot);
    dot_quad<1>(in, group, q, dot), dot_quad<5>(in, group, q, dot);
    if constexpr (kPairDots) set(sums, acts, true);
    if constexpr (kQuads < 8) {
      add_pairs(sums, dot);
      set(dot, acts, false);
    }
    dot_quad<2>(in, group, q, dot), dot_quad<6>(in, group, q, dot);
    dot_quad<3>(in, group, q, dot), dot_quad<7>(in, group, q, dot);
    if constexpr (kPairDots) {
      add_pairs(sums, dot);
    } else {
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) sums[r][v] = dot[r][v];
      }
    }
  }
  template <int R, int V>
  static TIDEMILL_INLINE void add_pairs(Vi (&sums)[R][V], const Vi (&dot)[R][V]) {
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) sums[r][v] = iadd(sums[r][v], ipair_sums(dot[r][v]));
    }
  }

  template <int R, int V>
  static TIDEMILL_INLINE void add_group(const TileInput& in, const uint8_t* group,
                                        const ActGroup* const (&acts)[R], const Vi (&dot)[R][V],
                                        Vf (&sum)[R][V]) {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(group) + in.lane;
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) {
      const Vf d = vload_half(scales + v * kLanes);
      if constexpr (Layout::kMins) {
        // correction_q4 is -8 times the sum.
        const Vf m = vmul(vload_half(scales + kPanel + v * kLanes), vset(-0.125f));
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          const Vf offset = vmul(vconvert(ibroadcast(&acts[r]->correction_q4)), m);
          const Vf value = vfma(vconvert(dot[r][v]), d, offset);
          sum[r][v] = vfma(value, vset(acts[r]->scale), sum[r][v]);
        }
      } else {
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r)
          sum[r][v] = vfma(vconvert(dot[r][v]), vmul(d, vset(acts[r]->scale)), sum[r][v]);
      }
    }
  }

  template <int R, int V, class Input>
  static TIDEMILL_INLINE void accumulate(const Input& in, Vf (&sum)[R][V]) {
    for (int64_t g = 0; g < in.k / kGroup; ++g) {
      prefetch_group(in, g);
      const uint8_t* group = in.panel + g * kBlockBytes;
      const ActGroup* acts[R];
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r)
        acts[r] = reinterpret_cast<const ActGroup*>(in.act + r * in.act_stride) + g;
      Vi dot[R][V];
      group_sums(in, group, acts, dot);
      add_group(in, group, acts, dot, sum);
    }
  }
};
