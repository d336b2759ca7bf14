// K types against int8 activations: exact integer sums per group of 32 (Q6_K: per half of it, which
// has a scale of its own), then float arithmetic that vectors and tiles share, so that both give
// the same bits: the group's value is (d * scale) * sum(q * a) - (dmin * minimum) * sum(a), or for
// Q6_K the two halves' (d * scale) * sum((q - 32) * a) added, and enters the row's sum with one fma
// by the activations' scale.
template <WeightType kType>
struct KWeights {
  using Layout = KLayout<kType>;
  static constexpr int kHalves = Layout::kMins ? 1 : 2;  // integer sums per group
  static constexpr int kRows = kHalves == 2 ? kHalvesRows : kI8Rows;
  static constexpr int kVecs = kHalves == 2 ? kHalvesVecs : kI8Vecs;
  static constexpr int64_t kPrefetchRows = 1;
  static constexpr int64_t kNearRows = Layout::kHighBits == 1 ? 0 : kHalves;  // measured
  static constexpr int64_t kBlockBytes = Layout::kGroupBytes;  // what a tile prefetches at once

  static TIDEMILL_INLINE const uint8_t* group_at(const uint8_t* panel, int64_t g) {
    return panel + Layout::group_offset(g);
  }

  static TIDEMILL_INLINE void prefetch_group(const TileInput& in, int64_t g) {
    prefetch_block(in, Layout::group_offset(g));
    if (in.next && in.line0 == 0 && g % 8 == 0)
      for (int64_t line = 0; line < Layout::kHeaderBytes; line += 64)
        prefetch(in.next + g / 8 * Layout::kBlockBytes + line);
  }

  // Factors of a group's integer sums, for V vectors of output rows from `lane` on.
  template <int V>
  struct Factors {
    Vf first[V];   // d * scale; Q6_K: of k 0..15
    Vf second[V];  // dmin * minimum; Q6_K: d * scale of k 16..31

    TIDEMILL_INLINE void load(const uint8_t* panel, int64_t g, int64_t lane) {
      const uint8_t* header = panel + g / 8 * Layout::kBlockBytes + lane * 2;
      const int8_t* scales = reinterpret_cast<const int8_t*>(group_at(panel, g) + lane);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) {
        const Vf d = vload_half(reinterpret_cast<const uint16_t*>(header) + v * kLanes);
        first[v] = vmul(d, vload_s8(scales + v * kLanes));
        Vf other = d;
        if constexpr (Layout::kMins)
          other = vload_half(reinterpret_cast<const uint16_t*>(header + 64) + v * kLanes);
        second[v] = vmul(other, vload_s8(scales + 32 + v * kLanes));
      }
    }

    // The group's value for one activation row, before the activations' scale.
    TIDEMILL_INLINE Vf scaled(int v, const ActGroup* act, Vi dot) const {
      return vfma(vset(act->minus_total), second[v], vmul(vconvert(dot), first[v]));
    }
    TIDEMILL_INLINE Vf scaled(int v, Vf lower, Vi upper) const {
      return vfma(vconvert(upper), second[v], lower);
    }
    TIDEMILL_INLINE Vf lower(int v, Vi dot) const { return vmul(vconvert(dot), first[v]); }

    TIDEMILL_INLINE Vf add(int v, const ActGroup* act, const Vi (&dot)[kHalves], Vf sum) const {
      Vf value;
      if constexpr (kHalves == 1) {
        value = scaled(v, act, dot[0]);
      } else {
        value = scaled(v, lower(v, dot[0]), dot[1]);
      }
      return vfma(value, vset(act->scale), sum);
    }
  };

  // Quad t of a group as unsigned bytes: k = 4t .. 4t + 3 of consecutive rows.
  template <int T>
  static TIDEMILL_INLINE Vi quad(const uint8_t* group, int64_t column) {
    const Vi pair = iload(group + Layout::kNibbles + T % 4 * 128 + column);
    const Vi low = T < 4 ? nibble_low(pair) : nibble_high(pair);
    if constexpr (Layout::kHighBits == 0) {
      return low;
    } else {
      constexpr int kFields = 8 / Layout::kHighBits;
      const Vi bits = iload(group + Layout::kHigh + T / kFields * 128 + column);
      const Vi mask = iset(Layout::kHighBits == 2 ? 0x30303030 : 0x10101010);
      return imerge(low, ishift_left<4 - T % kFields * Layout::kHighBits>(bits), mask);
    }
  }

  template <int T, int R, int V>
  static TIDEMILL_INLINE void dot_quad(const TileInput& in, const uint8_t* group, const uint8_t* act,
                              Vi (&dot)[R][V]) {
    Vi w[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) w[v] = quad<T>(group, (in.lane + v * kLanes) * 4);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Quad a = act_quad(act + r * in.act_stride + offsetof(ActGroup, q), T);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = dot_u6(dot[r][v], w[v], a);
    }
  }

  // The integer sums of a group, or of half kHalf of it, where q - 32 is what counts.
  template <int kHalf, int R, int V>
  static TIDEMILL_INLINE void dots(const TileInput& in, const uint8_t* group, const uint8_t* act,
                          Vi (&dot)[R][V]) {
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      Vi start = iset(0);
      if (kHalves == 2)
        start = imadd_pairs(ibroadcast(act + r * in.act_stride + offsetof(ActGroup, half_sums)),
                            iset(kHalf ? int32_t(0xffe00000u) : 0xffe0));
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = start;
    }
    if constexpr (kHalves == 1) {  // both nibbles of a vector while it is there
      dot_quad<0>(in, group, act, dot), dot_quad<4>(in, group, act, dot);
      dot_quad<1>(in, group, act, dot), dot_quad<5>(in, group, act, dot);
      dot_quad<2>(in, group, act, dot), dot_quad<6>(in, group, act, dot);
      dot_quad<3>(in, group, act, dot), dot_quad<7>(in, group, act, dot);
    } else {
      dot_quad<4 * kHalf>(in, group, act, dot), dot_quad<4 * kHalf + 1>(in, group, act, dot);
      dot_quad<4 * kHalf + 2>(in, group, act, dot), dot_quad<4 * kHalf + 3>(in, group, act, dot);
    }
  }

  template <int R, int V>
  static TIDEMILL_INLINE void accumulate(const TileInput& in, Vf (&sum)[R][V]) {
    for (int64_t g = 0; g < in.k / kGroup; ++g) {
      prefetch_group(in, g);
      const uint8_t* group = group_at(in.panel, g);
      const uint8_t* act = in.act + g * int64_t(sizeof(ActGroup));
      Factors<V> factors;
      Vi dot[R][V];
      Vf value[R][V];
      dots<0>(in, group, act, dot);
      factors.load(in.panel, g, in.lane);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v)
          value[r][v] = kHalves == 1 ? factors.scaled(v, act_group(in, r, g), dot[r][v])
                                     : factors.lower(v, dot[r][v]);
      }
      if constexpr (kHalves == 2) {
        dots<1>(in, group, act, dot);
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          TIDEMILL_UNROLL
          for (int v = 0; v < V; ++v) value[r][v] = factors.scaled(v, value[r][v], dot[r][v]);
        }
      }
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v)
          sum[r][v] = vfma(value[r][v], vset(act_group(in, r, g)->scale), sum[r][v]);
      }
    }
  }
};
