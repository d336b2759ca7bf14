// Packed activations, one row each.
//   F32   k floats, zeros up to a line
//   BF16  k values rounded to nearest even, zeros up to a line; 2 bytes each where the machine
//         multiplies bf16 pairs, else as floats
//   I8    per group of 32: ActGroup, 48 bytes
//   I8Row see channel.inl

// What the sums serve: where weights are stored with an offset, the accumulator starts from a
// correction, since sum (q + zero) * a = sum q * a + zero * sum a. Q8_0's is there ready, Q4_0's
// and Q6_K's are one instruction away from the sums by halves.
struct ActGroup {
  float scale;
  int32_t correction_q8;  // -128 * sum of q
  float minus_total;      // minus the sum of q: what minima are multiplied with
  int16_t half_sums[2];   // sums of q over 0..15 and 16..31
  int8_t q[32];
};
static_assert(sizeof(ActGroup) == 48, "layout shared by pack_act and gemm");

static int64_t act_row_bytes(ActType act, int64_t k) {
  switch (act) {
    case ActType::F32:
      return round_up(k * 4, 64);
    case ActType::BF16:
      return round_up(k * (kBf16Pairs ? 2 : 4), 64);
    case ActType::I8:
      return round_up(k / kGroup * int64_t(sizeof(ActGroup)), 64);
    case ActType::I8Row:
      return channel_act_bytes(k);
  }
  return 0;
}

static inline void pack_act_i8(const float* x, ActGroup* out) {
  constexpr int kVecs = 32 / kLanes;
  Vf v[kVecs];
  Vf largest = vzero();
  for (int i = 0; i < kVecs; ++i) {
    v[i] = vload(x + i * kLanes);
    largest = vmax(largest, vabs(v[i]));
  }
  const float bound = vreduce_max(largest);
  const Vf inverse = vset(bound > 0.0f ? 127.0f / bound : 0.0f);
  Vi sums[2] = {iset(0), iset(0)};
  for (int i = 0; i < kVecs; ++i) {
    // A subnormal bound overflows the quotient; the clamp keeps q within +-127, a NaN too.
    const Vf scaled = vmin(vmax(vmul(v[i], inverse), vset(-127.0f)), vset(127.0f));
    const Vi q = vround(scaled);
    Vi& sum = sums[i * kLanes / 16];
    sum = iadd(sum, q);
    istore_s8(out->q + i * kLanes, q);
  }
  const int32_t lower = ireduce_add(sums[0]), upper = ireduce_add(sums[1]);
  const int32_t total = lower + upper;
  out->scale = bound / 127.0f;
  out->correction_q8 = -128 * total;
  out->minus_total = float(-total);
  out->half_sums[0] = int16_t(lower);
  out->half_sums[1] = int16_t(upper);
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

static void pack_act(ActType act, const float* x, int64_t k, uint8_t* out) {
  if (act == ActType::I8Row) return pack_act_channel(x, k, out);
  if (act == ActType::I8) {
    ActGroup* groups = reinterpret_cast<ActGroup*>(out);
    for (int64_t g = 0; g < k / kGroup; ++g) pack_act_i8(x + g * kGroup, groups + g);
    return;
  }
  const int64_t row = act_row_bytes(act, k);
  if (act == ActType::F32) {
    __builtin_memcpy(out, x, size_t(k) * 4);
    __builtin_memset(out + k * 4, 0, size_t(row - k * 4));
    return;
  }
  pack_bf16(x, k, out);
  const int64_t used = k * (kBf16Pairs ? 2 : 4);
  __builtin_memset(out + used, 0, size_t(row - used));
}
