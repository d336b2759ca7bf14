// int8x4 number T of a group as unsigned bytes: k = 4T .. 4T + 3 of consecutive rows.
template <class Layout, int T>
static TIDEMILL_INLINE Vi code_quad(const uint8_t* group, int64_t column) {
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

// K types with int8 activations in blocks of 256, like their scales: sums per group of 32 (Q6_K: per
// half group) are multiplied with the group's integer scale and added as integers, so a whole block is
// exact until d, dmin and the activations' scale are applied once per block:
//   (d * sum(scale * sum(q * a)) - dmin * sum(minimum * sum(a))) * activations' scale
// Q6_K has q - 32 instead of minima. The largest sum of a block needs 28 bits.
template <WeightType kType>
struct KWeights {
  using Layout = KLayout<kType>;
  static constexpr int kHalves = Layout::kMins ? 1 : 2;  // integer sums per group
  static constexpr int kRows = kBlockRows, kVecs = kBlockVecs;
  static constexpr int64_t kPrefetchRows = prefetch_min_rows(kPrefetchRowsK, kRows, kVecs);
  static constexpr int64_t kBlockBytes = Layout::kGroupBytes;  // unit of prefetching
  static constexpr int64_t kBlockCycles = 68;
  static constexpr int64_t kEveryLineRows = 1;
  static constexpr int64_t kScaledGroups = kBlock / kGroup;    // groups that share a float scale
  static constexpr int kQuads = fitting_quads((16 << Layout::kHighBits) - 1);

  static TIDEMILL_INLINE const uint8_t* group_at(const uint8_t* panel, int64_t g) {
    return panel + Layout::group_offset(g);
  }
  static TIDEMILL_INLINE const ActBlock* act_block(const TileInput& in, int64_t row, int64_t b) {
    return reinterpret_cast<const ActBlock*>(in.act + row * in.act_stride) + b;
  }

  template <class Input>
  static TIDEMILL_INLINE void prefetch_group(const Input& in, int64_t g) {
    prefetch_kv_lines(in);
    if (in.every_line) return prefetch_every_line<kBlockBytes>(group_at(in.panel, g));
    if (!in.next) return prefetch_next_page<kBlockBytes / 512>(in, Layout::group_offset(g));
    prefetch_block(in, Layout::group_offset(g));
    if (in.line0 == 0 && g % 8 == 0)
      for (int64_t line = 0; line < Layout::kFooterBytes; line += 64)
        prefetch_next(in, g / 8 * Layout::kBlockBytes + Layout::kFooter + line);
  }

  // Scales and accumulates a tile's integer sums.
  template <int R, int V>
  struct Scaled {
    Vi block[R][V];  // sums of scale * dot
    Vi scale[kHalves][V];

    TIDEMILL_INLINE void open() {
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v) block[r][v] = iset(0);
      }
    }
    TIDEMILL_INLINE void load(const TileInput& in, int64_t g) {
      const int8_t* scales = reinterpret_cast<const int8_t*>(group_at(in.panel, g) + in.lane);
      TIDEMILL_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        TIDEMILL_UNROLL
        for (int v = 0; v < V; ++v)
          scale[half][v] = load_scales(scales + half * kPanel + v * kLanes);
      }
    }
    template <int kHalf>
    TIDEMILL_INLINE void add_half(int r, int v, Vi dot) {
      block[r][v] = add_scaled(block[r][v], dot, scale[kHalf][v]);
      ikeep(block[r][v]);
    }

    // Minima of groups 2i and 2i + 1, as pairs of 16 bits.
    static TIDEMILL_INLINE Vi minima(const uint8_t* groups, int i, int64_t lane) {
      const int8_t* at =
          reinterpret_cast<const int8_t*>(groups + 2 * i * Layout::kGroupBytes + kPanel + lane);
      return iadd(iload_s8(at), ishift_left<16>(iload_s8(at + Layout::kGroupBytes)));
    }

    TIDEMILL_INLINE void close(const TileInput& in, int64_t b, Vf (&sum)[R][V]) const {
      const uint8_t* groups = in.panel + b * Layout::kBlockBytes;
      const uint8_t* footer = groups + Layout::kFooter;
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) {
        const int64_t lane = in.lane + v * kLanes;
        const Vf d = vload_half(reinterpret_cast<const uint16_t*>(footer) + lane);
        Vf dmin = vzero();
        Vi pairs[4];
        if constexpr (Layout::kMins) {
          dmin = vload_half(reinterpret_cast<const uint16_t*>(footer + 64) + lane);
          TIDEMILL_UNROLL
          for (int i = 0; i < 4; ++i) pairs[i] = minima(groups, i, lane);
        }
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          const ActBlock* act = act_block(in, r, b);
          Vf value = vmul(vconvert(block[r][v]), d);
          if constexpr (Layout::kMins) {
            Vi offset = imadd_pairs(pairs[0], ibroadcast(act->minus_sums));
            TIDEMILL_UNROLL
            for (int i = 1; i < 4; ++i)
              offset = iadd(offset, imadd_pairs(pairs[i], ibroadcast(act->minus_sums + 2 * i)));
            value = vfma(vconvert(offset), dmin, value);
          }
          sum[r][v] = vfma(value, vset(act->scale), sum[r][v]);
        }
      }
    }
  };

  template <int T, int R, int V>
  static TIDEMILL_INLINE void dot_quad(const TileInput& in, const uint8_t* group,
                                       const uint8_t* act, Vi (&dot)[R][V]) {
    Vi w[V];
    TIDEMILL_UNROLL
    for (int v = 0; v < V; ++v) w[v] = code_quad<Layout, T>(group, (in.lane + v * kLanes) * 4);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Int8x4 a = act_int8x4(act + r * in.act_stride, T);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = dot_u6(dot[r][v], w[v], a);
    }
  }

  template <int kHalf, int R, int V>
  static TIDEMILL_INLINE void start_dots(const TileInput& in, const uint8_t* act, int64_t g,
                                         Vi (&dot)[R][V]) {
    const uint8_t* starts = act + offsetof(ActBlock, q6_starts) + (2 * g + kHalf) * 4;
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vi start = kHalves == 2 ? ibroadcast(starts + r * in.act_stride) : iset(0);
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) dot[r][v] = start;
    }
  }

  template <int kHalf, int R, int V>
  static TIDEMILL_INLINE void add_dots(const Vi (&dot)[R][V], Scaled<R, V>& scaled) {
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      TIDEMILL_UNROLL
      for (int v = 0; v < V; ++v) scaled.template add_half<kHalf>(r, v, dot[r][v]);
    }
  }

  // A whole group, using both nibbles of a vector while it is loaded.
  template <int R, int V>
  static TIDEMILL_INLINE void whole_group(const TileInput& in, const uint8_t* group,
                                          const uint8_t* act, int64_t g, Scaled<R, V>& scaled) {
    Vi dot[R][V];
    start_dots<0>(in, act, g, dot);
    const uint8_t* q = act + g * kGroup;
    dot_quad<0>(in, group, q, dot), dot_quad<4>(in, group, q, dot);
    dot_quad<1>(in, group, q, dot), dot_quad<5>(in, group, q, dot);
    if constexpr (kQuads < 8) {
      add_dots<0>(dot, scaled);
      start_dots<0>(in, act, g, dot);
    }
    dot_quad<2>(in, group, q, dot), dot_quad<6>(in, group, q, dot);
    dot_quad<3>(in, group, q, dot), dot_quad<7>(in, group, q, dot);
    add_dots<0>(dot, scaled);
  }

  // Half a group at a time: the sums of both halves need more registers than there are (and with one
  // row, where they fit, take 1.2 times as long).
  template <int kHalf, int R, int V>
  static TIDEMILL_INLINE void half_group(const TileInput& in, const uint8_t* group,
                                         const uint8_t* act, int64_t g, Scaled<R, V>& scaled) {
    Vi dot[R][V];
    start_dots<kHalf>(in, act, g, dot);
    const uint8_t* q = act + g * kGroup;
    dot_quad<4 * kHalf>(in, group, q, dot), dot_quad<4 * kHalf + 1>(in, group, q, dot);
    dot_quad<4 * kHalf + 2>(in, group, q, dot), dot_quad<4 * kHalf + 3>(in, group, q, dot);
    add_dots<kHalf>(dot, scaled);
  }

  template <int R, int V, class Input>
  static TIDEMILL_INLINE void accumulate(const Input& in, Vf (&sum)[R][V]) {
    for (int64_t b = 0; b < in.k / kBlock; ++b) {
      const uint8_t* act = in.act + b * int64_t(sizeof(ActBlock));
      Scaled<R, V> scaled;
      scaled.open();
      for (int64_t g = 0; g < kScaledGroups; ++g) {
        prefetch_group(in, b * kScaledGroups + g);
        const uint8_t* group = group_at(in.panel, b * kScaledGroups + g);
        scaled.load(in, b * kScaledGroups + g);
        if constexpr (kHalves == 1) {
          whole_group(in, group, act, g, scaled);
        } else {
          half_group<0>(in, group, act, g, scaled);
          half_group<1>(in, launder_pointer(group), act, g, scaled);
        }
      }
      scaled.close(in, b, sum);
    }
  }
};
