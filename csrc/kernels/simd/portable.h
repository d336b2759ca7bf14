// Vector wrapper in plain C++, for any machine; it defines the semantics of the other wrappers: 32-bit
// lanes, bf16 pairs with the even element in the low half, four u8 x s8 products per lane.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill::portable {
#include "kernels/simd/scalar.inl"

constexpr const char* kIsaName = "portable";
constexpr int kLanes = 8;
// Adjacent bytes of a row in an int8 panel: the depth of a dot product.
constexpr int kDotBytes = 4;
// XOR mask of four 8-bit weights in a panel: vector kernels multiply q + 128 as unsigned bytes.
constexpr uint32_t kQ8Flip = 0x80808080u;
// Whether int8 accumulators need a zero point correction (here the dot product subtracts it).
constexpr bool kQ8Offset = false;
constexpr bool kQ4Offset = false;
// Whether products of bytes are 16-bit sums of two. dot_q4 and dot_u6 then accumulate two such sums per
// lane, which ipair_sums and add_scaled combine, and only as many as fit; dot_q8 takes activations as
// magnitudes and signs (Int8x4Q8, store_act_q8).
constexpr bool kPairDots = false;
// Whether a bf16 dot product is one instruction. If not, bf16 is converted to float exactly, and
// activations, queries and probabilities stay in float lanes.
constexpr bool kBf16Pairs = false;
// Register tile shapes per kernel: rows and vectors per panel pass.
constexpr int kI8Vecs = 2, kI8Rows = 2;
// For K types, which keep sums of a group and of its block.
constexpr int kBlockVecs = 1, kBlockRows = 2;
constexpr int kFloatVecs = 2, kFloatRows = 4;
constexpr int kScoreVecs = 2, kScoreRows = 4;
constexpr int kAccRegisters = 12;
// Number of rows from which weights are prefetched, per type, and the distance if they are read as one
// stream (csrc/kernels/gemm/gemm.inl).
constexpr int64_t kPrefetchRowsQ8 = 5, kPrefetchRowsQ4 = 3, kPrefetchRowsK = 3, kPrefetchRowsFloat = 7;
constexpr int64_t kPrefetchBytes = int64_t(1) << 30;  // a panel

struct Vf { float v[kLanes]; };
struct Vi { int32_t v[kLanes]; };

#define TIDEMILL_LANES for (int i = 0; i < kLanes; ++i)

static inline Vf vset(float x) { Vf r; TIDEMILL_LANES r.v[i] = x; return r; }
static inline Vf vzero() { return vset(0.0f); }
static inline Vf vload(const float* p) { Vf r; __builtin_memcpy(&r, p, sizeof r); return r; }
static inline void vstore(float* p, Vf a) { __builtin_memcpy(p, &a, sizeof a); }
static inline Vf vload_n(const float* p, int64_t n) {
  Vf r = vzero();
  for (int i = 0; i < kLanes && i < n; ++i) r.v[i] = p[i];
  return r;
}
static inline void vstore_n(float* p, Vf a, int64_t n) {
  for (int i = 0; i < kLanes && i < n; ++i) p[i] = a.v[i];
}
static inline Vf vadd(Vf a, Vf b) { TIDEMILL_LANES a.v[i] += b.v[i]; return a; }
static inline Vf vsub(Vf a, Vf b) { TIDEMILL_LANES a.v[i] -= b.v[i]; return a; }
static inline Vf vmul(Vf a, Vf b) { TIDEMILL_LANES a.v[i] *= b.v[i]; return a; }
static inline Vf vdiv(Vf a, Vf b) { TIDEMILL_LANES a.v[i] /= b.v[i]; return a; }
// The second operand is returned if either is NaN, as on x86.
static inline Vf vmax(Vf a, Vf b) {
  TIDEMILL_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline Vf vmin(Vf a, Vf b) {
  TIDEMILL_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline Vf vabs(Vf a) { TIDEMILL_LANES a.v[i] = __builtin_fabsf(a.v[i]); return a; }
// Fused only if the machine has the instruction: a library fma costs a hundred times more.
static inline Vf vfma(Vf a, Vf b, Vf c) {
#ifdef __FP_FAST_FMAF
  TIDEMILL_LANES c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
#else
  TIDEMILL_LANES c.v[i] = a.v[i] * b.v[i] + c.v[i];
#endif
  return c;
}
static inline void vadd_product(Vf& sum, Vf a, Vf b) { sum = vfma(a, b, sum); }
static inline float vreduce_add(Vf a) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  return a.v[0];
}
static inline float vreduce_max(Vf a) {
  for (int i = 1; i < kLanes; ++i) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}

static inline Vi iset(int32_t x) { Vi r; TIDEMILL_LANES r.v[i] = x; return r; }
static inline Vi iload(const void* p) { Vi r; __builtin_memcpy(&r, p, sizeof r); return r; }
static inline void istore(void* p, Vi a) { __builtin_memcpy(p, &a, sizeof a); }
static inline Vi ibroadcast(const void* p) { return iset(load_as<int32_t>(p)); }
static inline Vi iand(Vi a, Vi b) { TIDEMILL_LANES a.v[i] &= b.v[i]; return a; }
static inline Vi iadd(Vi a, Vi b) {
  TIDEMILL_LANES a.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i]));
  return a;
}
static inline int32_t ireduce_add(Vi a) {
  int32_t sum = 0;
  TIDEMILL_LANES sum += a.v[i];
  return sum;
}
static inline Vf as_float(Vi a) { Vf r; __builtin_memcpy(&r, &a, sizeof r); return r; }
static inline Vi as_int(Vf a) { Vi r; __builtin_memcpy(&r, &a, sizeof r); return r; }
static inline Vf vconvert(Vi a) { Vf r; TIDEMILL_LANES r.v[i] = float(a.v[i]); return r; }
// Nearest even, for |x| < 2^22.
static inline Vi vround(Vf a) {
  Vi r;
  TIDEMILL_LANES {
    const float x = a.v[i];
    r.v[i] = x > -4194304.0f && x < 4194304.0f ? int32_t((x + 12582912.0f) - 12582912.0f)
                                               : INT32_MIN;
  }
  return r;
}
static inline Vf vround_float(Vf a) {
  TIDEMILL_LANES {
    if (a.v[i] > -4194304.0f && a.v[i] < 4194304.0f)
      a.v[i] = (a.v[i] + 12582912.0f) - 12582912.0f;
  }
  return a;
}
static inline Vf vfloor(Vf a) { TIDEMILL_LANES a.v[i] = __builtin_floorf(a.v[i]); return a; }
// a * 2^n for integral n in [-252, 252].
static inline Vf vscale2(Vf a, Vf n) {
  TIDEMILL_LANES {
    if (n.v[i] != n.v[i]) continue;  // NaN; then a is NaN too
    const int32_t whole = int32_t(n.v[i]);
    const int32_t half = whole / 2;
    a.v[i] *= bits_float(uint32_t(half + 127) << 23);
    a.v[i] *= bits_float(uint32_t(whole - half + 127) << 23);
  }
  return a;
}
// a, and zero where x < bound.
static inline Vf vzero_below(Vf a, Vf x, float bound) {
  TIDEMILL_LANES if (x.v[i] < bound) a.v[i] = 0.0f;
  return a;
}

static inline Vf vload_half(const uint16_t* p) {
  Vf r;
  TIDEMILL_LANES r.v[i] = half_to_float(p[i]);
  return r;
}
static inline Vf vload_bf16(const uint16_t* p) {
  Vf r;
  TIDEMILL_LANES r.v[i] = bf16_to_float(p[i]);
  return r;
}
// kLanes signed bytes.
static inline Vi iload_s8(const int8_t* p) {
  Vi r;
  TIDEMILL_LANES r.v[i] = p[i];
  return r;
}
static inline Vf vload_s8(const int8_t* p) { return vconvert(iload_s8(p)); }
// Low or high nibbles of kLanes bytes, 0 to 15.
static inline Vf vload_low_nibbles(const uint8_t* p) {
  Vf r;
  TIDEMILL_LANES r.v[i] = float(p[i] & 15);
  return r;
}
static inline Vf vload_high_nibbles(const uint8_t* p) {
  Vf r;
  TIDEMILL_LANES r.v[i] = float(p[i] >> 4);
  return r;
}
// Saturating store of one byte per lane.
static inline void istore_s8(int8_t* p, Vi a) {
  TIDEMILL_LANES p[i] = int8_t(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}
static inline Vf pair_even(Vi a) {
  Vf r;
  TIDEMILL_LANES r.v[i] = bits_float(uint32_t(a.v[i]) << 16);
  return r;
}
static inline Vf pair_odd(Vi a) {
  Vf r;
  TIDEMILL_LANES r.v[i] = bits_float(uint32_t(a.v[i]) & 0xffff0000u);
  return r;
}
// Rounded to nearest even, still float.
static inline Vf vround_bf16(Vf a) {
  TIDEMILL_LANES a.v[i] = bf16_to_float(float_to_bf16(a.v[i]));
  return a;
}
// w: four q + 128 per lane, a: four signed bytes.
static inline Vi dot_q8(Vi acc, Vi w, Vi a) {
  const uint8_t* u = reinterpret_cast<const uint8_t*>(&w);
  const int8_t* s = reinterpret_cast<const int8_t*>(&a);
  TIDEMILL_LANES {
    int32_t sum = 0;
    for (int j = 0; j < 4; ++j) sum += (int32_t(u[4 * i + j]) - 128) * s[4 * i + j];
    acc.v[i] += sum;
  }
  return acc;
}
// w: four nibbles q + 8 in the low (or after nibble_high, low) bits of its bytes.
static inline Vi nibble_low(Vi w) { return iand(w, iset(0x0f0f0f0f)); }
static inline Vi nibble_high(Vi w) {
  TIDEMILL_LANES w.v[i] = int32_t((uint32_t(w.v[i]) >> 4) & 0x0f0f0f0fu);
  return w;
}
// A table of 16 bytes, and its lookup with the bytes of `index` (each below 16).
static inline Vi itable(const void* p) {
  Vi r = iset(0);
  __builtin_memcpy(&r, p, 16);
  return r;
}
static inline Vi ilook_up(Vi table, Vi index) {
  uint8_t bytes[sizeof(Vi)];
  __builtin_memcpy(bytes, &index, sizeof bytes);
  const uint8_t* at = reinterpret_cast<const uint8_t*>(&table);
  for (uint8_t& byte : bytes) byte = at[byte];
  __builtin_memcpy(&index, bytes, sizeof bytes);
  return index;
}
static inline Vi dot_q4(Vi acc, Vi w, Vi a) {
  const uint8_t* u = reinterpret_cast<const uint8_t*>(&w);
  const int8_t* s = reinterpret_cast<const int8_t*>(&a);
  TIDEMILL_LANES {
    int32_t sum = 0;
    for (int j = 0; j < 4; ++j) sum += (int32_t(u[4 * i + j]) - 8) * s[4 * i + j];
    acc.v[i] += sum;
  }
  return acc;
}
// w: four unsigned values below 64 per lane, a: four signed bytes.
static inline Vi dot_u6(Vi acc, Vi w, Vi a) {
  const uint8_t* u = reinterpret_cast<const uint8_t*>(&w);
  const int8_t* s = reinterpret_cast<const int8_t*>(&a);
  TIDEMILL_LANES {
    int32_t sum = 0;
    for (int j = 0; j < 4; ++j) sum += int32_t(u[4 * i + j]) * s[4 * i + j];
    acc.v[i] += sum;
  }
  return acc;
}
// Lanes shifted left by kBits; right (zero-filling) if kBits is negative.
template <int kBits>
static inline Vi ishift_left(Vi a) {
  TIDEMILL_LANES {
    const uint32_t u = uint32_t(a.v[i]);
    a.v[i] = int32_t(kBits >= 0 ? u << (kBits & 31) : u >> (-kBits & 31));
  }
  return a;
}
// a | (b & mask)
static inline Vi imerge(Vi a, Vi b, Vi mask) {
  TIDEMILL_LANES a.v[i] |= b.v[i] & mask.v[i];
  return a;
}
// Lanes as pairs of int16: the sum of both products.
static inline Vi imadd_pairs(Vi a, Vi b) {
  TIDEMILL_LANES a.v[i] = int16_t(a.v[i]) * int16_t(b.v[i]) + (a.v[i] >> 16) * (b.v[i] >> 16);
  return a;
}
// Forces the sum to be computed now instead of deferring its operands.
static inline void ikeep(Vi&) {}
// Multiplies dot products with the integer scales (signed bytes) of consecutive rows.
static inline Vi load_scales(const int8_t* p) { return iload_s8(p); }
static inline Vi add_scaled(Vi acc, Vi dots, Vi scales) {
  TIDEMILL_LANES acc.v[i] += dots.v[i] * scales.v[i];
  return acc;
}
static inline Vi ipair_sums(Vi dots) { return dots; }
// Initial value of dot products with 16 bytes at `q`, whose sum is `sum`, for weights minus 32.
static inline int32_t dot_start_u6(const int8_t*, int32_t sum) { return -32 * sum; }
// Lane i holds index `first + i`; lanes outside [lo, hi) are replaced by `fill`.
static inline Vf keep_range(Vf a, int64_t first, int64_t lo, int64_t hi, float fill) {
  TIDEMILL_LANES a.v[i] = first + i >= lo && first + i < hi ? a.v[i] : fill;
  return a;
}
// No instruction exists on all machines, and this table is not chosen for speed.
static inline void prefetch(const void*) {}
static inline void prefetch_streaming(const void*) {}
static inline void prefetch_write(void*) {}

#undef TIDEMILL_LANES
}  // namespace tidemill::portable
