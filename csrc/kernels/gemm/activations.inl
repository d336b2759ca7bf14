// Packed activations, one row each:
//   F32   k floats, zero-padded to a cache line
//   BF16  k values rounded to nearest even, zero-padded to a cache line; 2 bytes each if the machine
//         multiplies bf16 pairs, otherwise stored as floats
//   I8    per group of 32: ActGroup, 48 bytes
//   I8SignMagnitude  the same for tables with kPairDots: ActGroupQ8, 80 bytes
//   I8Row see channel.inl
//   I8Block  per block of 256, the block size of K types: ActBlock, 352 bytes

// Corrections: where weights are stored with an offset, the accumulator starts at the correction,
// because sum (q + zero) * a = sum q * a + zero * sum a.
struct ActGroup {
  float scale;
  int32_t correction_q8;     // -128 * sum of q
  int32_t correction_q4;     // -8 * sum of q
  int32_t correction_mxfp4;  // -12 * sum of q
  alignas(16) int8_t q[kGroup];
};
static_assert(sizeof(ActGroup) == 48, "layout shared by pack_act and gemm");

struct ActGroupQ8 {
  float scale;
  int32_t correction_q8;
  alignas(16) uint8_t q[kGroup * kActBytesQ8];
};

struct alignas(32) ActBlock {
  int8_t q[kBlock];
  int32_t q6_starts[kBlock / 16];       // dot_start_u6 per 16 q: initial accumulators for Q6_K
  int16_t minus_sums[kBlock / kGroup];  // minus the sums of 32 q: factors of the minima
  float scale;
};
static_assert(sizeof(ActBlock) == 352, "layout shared by pack_act and gemm");

// A tile loads one line of each of 16 rows at once; an even number of lines between rows would map them
// to a few L1 sets.
#ifdef TIDEMILL_AMX
constexpr int64_t kRowPadding = 64;
#else
constexpr int64_t kRowPadding = 0;
#endif

static int64_t act_row_bytes(ActType act, int64_t k) {
  switch (act) {
    case ActType::F32:
      return round_up(k * 4, 64);
    case ActType::BF16:
      return round_up(k * (kBf16Pairs ? 2 : 4), 64) | kRowPadding;
    case ActType::I8:
      return round_up(k / kGroup * int64_t(sizeof(ActGroup)), 64);
    case ActType::I8SignMagnitude:
      return round_up(k / kGroup * int64_t(sizeof(ActGroupQ8)), 64);
    case ActType::I8Row:
      return channel_act_bytes(k);
    case ActType::I8Block:
      return round_up(k / kBlock * int64_t(sizeof(ActBlock)), 64);
  }
  return 0;
}

// For an int8 scale shared by kCount values: returns its inverse in all lanes, and stores the scale.
template <int kCount>
static inline Vf inverse_act(const float* x, float* scale) {
  Vf largest = vzero();
  for (int i = 0; i < kCount; i += kLanes) largest = vmax(largest, vabs(vload(x + i)));
  const float bound = vreduce_max(largest);
  *scale = bound / 127.0f;
  return vset(bound > 0.0f ? 127.0f / bound : 0.0f);
}
static inline auto values_of(const float* x) {
  return [x](int i) { return vload(x + i); };
}

static inline void pack_act_group(const float* x, ActGroup* out) {
  Vi sums[2];
  round_group(values_of(x), inverse_act<kGroup>(x, &out->scale), out->q, sums);
  const int32_t sum = ireduce_add(iadd(sums[0], sums[1]));
  out->correction_q8 = -128 * sum;
  out->correction_q4 = -8 * sum;
  out->correction_mxfp4 = -12 * sum;
}

static inline void pack_act_group(const float* x, ActGroupQ8* out) {
  const Vi starts = round_act_q8(values_of(x), inverse_act<kGroup>(x, &out->scale), out->q);
  out->correction_q8 = kStartQ8 * ireduce_add(starts);
}

static inline void pack_act_block(const float* x, ActBlock* out) {
  const Vf inverse = inverse_act<kBlock>(x, &out->scale);
  for (int g = 0; g < kBlock / kGroup; ++g) {
    Vi sums[2];
    int32_t sum[2];
    int8_t* const q = out->q + g * kGroup;
    round_group(values_of(x + g * kGroup), inverse, q, sums);
    for (int half = 0; half < 2; ++half) {
      sum[half] = ireduce_add(sums[half]);
      out->q6_starts[2 * g + half] = dot_start_u6(q + 16 * half, sum[half]);
    }
    out->minus_sums[g] = int16_t(-(sum[0] + sum[1]));
  }
}

#ifdef TIDEMILL_BF16_PAIRS
static inline void pack_bf16(const float* x, int64_t k, uint8_t* out) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes)
    istore(out + i * 2, round_bf16_pair(vload(x + i), vload(x + i + kLanes)));
  for (; i < k; ++i) store_as(out + i * 2, float_to_bf16(x[i]));
}
#else
static inline void pack_bf16(const float* x, int64_t k, uint8_t* out) {
  float* values = reinterpret_cast<float*>(out);
  for (int64_t i = 0; i < k; i += kLanes)
    vstore_n(values + i, vround_bf16(vload_n(x + i, k - i)), k - i);
}
#endif

template <class Group>
static void pack_act_groups(const float* x, int64_t from, int64_t n, uint8_t* out) {
  Group* groups = reinterpret_cast<Group*>(out) + from / kGroup;
  for (int64_t g = 0; g < n / kGroup; ++g) pack_act_group(x + g * kGroup, groups + g);
}

static int64_t act_part(ActType act) {
  switch (act) {
    case ActType::F32:
    case ActType::BF16:
      return 1;
    case ActType::I8:
    case ActType::I8SignMagnitude:
      return kGroup;
    case ActType::I8Block:
      return kBlock;
    case ActType::I8Row:
      return 0;
  }
  return 0;
}

static void pack_act_part(ActType act, const float* x, int64_t from, int64_t n, int64_t k,
                          uint8_t* out) {
  if (act == ActType::I8) return pack_act_groups<ActGroup>(x, from, n, out);
  if (act == ActType::I8SignMagnitude) return pack_act_groups<ActGroupQ8>(x, from, n, out);
  if (act == ActType::I8Block) {
    ActBlock* blocks = reinterpret_cast<ActBlock*>(out) + from / kBlock;
    for (int64_t b = 0; b < n / kBlock; ++b) pack_act_block(x + b * kBlock, blocks + b);
    return;
  }
  const int64_t bytes = act == ActType::BF16 && kBf16Pairs ? 2 : 4;
  if (act == ActType::F32) {
    __builtin_memcpy(out + from * bytes, x, size_t(n * bytes));
  } else {
    pack_bf16(x, n, out + from * bytes);
  }
  if (from + n == k)
    __builtin_memset(out + k * bytes, 0, size_t(act_row_bytes(act, k) - k * bytes));
}

static void pack_act(ActType act, const float* x, int64_t k, uint8_t* out) {
  act == ActType::I8Row ? pack_act_channel(x, k, out) : pack_act_part(act, x, 0, k, k, out);
}
