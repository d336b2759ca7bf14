// Vector wrapper over Advanced SIMD with int8 dot products (Armv8.2 FEAT_DotProd). Semantics of each
// function: portable.h. With TIDEMILL_I8MM also over FEAT_I8MM and FEAT_BF16, a separate table: int8
// matrix products and bf16 dot products.
#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#ifdef TIDEMILL_I8MM
#define TIDEMILL_NEON i8mm
#define TIDEMILL_BF16_DOT 1
#define TIDEMILL_BF16_PAIRS 1
#else
#define TIDEMILL_NEON neon
#endif

namespace tidemill::TIDEMILL_NEON {
#include "kernels/simd/scalar.inl"

#ifdef TIDEMILL_I8MM
constexpr const char* kIsaName = "i8mm";
constexpr int kDotBytes = 8;
constexpr bool kBf16Pairs = true;
#else
constexpr const char* kIsaName = "neon";
constexpr int kDotBytes = 4;
constexpr bool kBf16Pairs = false;
#endif
constexpr int kLanes = 4;
constexpr uint32_t kQ8Flip = 0;    // sdot multiplies signed with signed bytes
constexpr bool kQ8Offset = false;
constexpr bool kPairDots = false;
constexpr bool kQ4Offset = true;   // once per row, cheaper than subtracting 8 from every nibble
// 32 registers: float sums, integer sums, and one or two vectors of weights.
constexpr int kI8Vecs = 4, kI8Rows = 3;
constexpr int kBlockVecs = 4, kBlockRows = 3;
constexpr int kFloatVecs = 4, kFloatRows = 5;
constexpr int kScoreVecs = 4, kScoreRows = 5;
constexpr int kAccRegisters = 20;
constexpr int64_t kPrefetchRowsQ8 = 5, kPrefetchRowsQ4 = 3, kPrefetchRowsK = 3, kPrefetchRowsFloat = 7;
constexpr int64_t kPrefetchBytes = int64_t(1) << 30;  // a panel

using Vf = float32x4_t;
using Vi = int32x4_t;

static inline int8x16_t as_bytes(Vi a) { return vreinterpretq_s8_s32(a); }
static inline uint32x4_t as_bits(Vi a) { return vreinterpretq_u32_s32(a); }
static inline uint32x4_t as_bits(Vf a) { return vreinterpretq_u32_f32(a); }
static inline Vi from_bits(uint32x4_t a) { return vreinterpretq_s32_u32(a); }

static inline Vf vset(float x) { return vdupq_n_f32(x); }
static inline Vf vzero() { return vdupq_n_f32(0.0f); }
static inline Vf vload(const float* p) { return vld1q_f32(p); }
static inline void vstore(float* p, Vf a) { vst1q_f32(p, a); }
static inline Vf vload_n(const float* p, int64_t n) {
  if (n >= kLanes) return vload(p);
  float padded[kLanes] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return vload(padded);
}
static inline void vstore_n(float* p, Vf a, int64_t n) {
  if (n >= kLanes) return vstore(p, a);
  float padded[kLanes];
  vstore(padded, a);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}
static inline Vf vadd(Vf a, Vf b) { return vaddq_f32(a, b); }
static inline Vf vsub(Vf a, Vf b) { return vsubq_f32(a, b); }
static inline Vf vmul(Vf a, Vf b) { return vmulq_f32(a, b); }
static inline Vf vdiv(Vf a, Vf b) { return vdivq_f32(a, b); }
// NaN in either operand stays NaN; on x86 only in the second operand.
static inline Vf vmax(Vf a, Vf b) { return vmaxq_f32(a, b); }
static inline Vf vmin(Vf a, Vf b) { return vminq_f32(a, b); }
static inline Vf vabs(Vf a) { return vabsq_f32(a); }
static inline Vf vfma(Vf a, Vf b, Vf c) { return vfmaq_f32(c, a, b); }
static inline void vadd_product(Vf& sum, Vf a, Vf b) { sum = vfma(a, b, sum); }
static inline float vreduce_add(Vf a) { return vaddvq_f32(a); }
static inline float vreduce_max(Vf a) { return vmaxvq_f32(a); }

static inline Vi iset(int32_t x) { return vdupq_n_s32(x); }
static inline Vi iload(const void* p) {
  return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
}
static inline void istore(void* p, Vi a) {
  vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_s32(a));
}
static inline Vi ibroadcast(const void* p) { return vdupq_n_s32(load_as<int32_t>(p)); }
static inline Vi iand(Vi a, Vi b) { return vandq_s32(a, b); }
static inline Vi iadd(Vi a, Vi b) { return vaddq_s32(a, b); }
static inline int32_t ireduce_add(Vi a) { return vaddvq_s32(a); }
static inline Vf as_float(Vi a) { return vreinterpretq_f32_s32(a); }
static inline Vi as_int(Vf a) { return vreinterpretq_s32_f32(a); }
static inline Vf vconvert(Vi a) { return vcvtq_f32_s32(a); }
static inline Vi vround(Vf a) { return vcvtnq_s32_f32(a); }
static inline Vf vround_float(Vf a) { return vrndnq_f32(a); }
static inline Vf vfloor(Vf a) { return vrndmq_f32(a); }
static inline Vf vscale2(Vf a, Vf n) {
  const Vi whole = vcvtnq_s32_f32(n);
  const Vi half = vshrq_n_s32(whole, 1), rest = vsubq_s32(whole, half);
  const Vi first = vshlq_n_s32(vaddq_s32(half, iset(127)), 23);
  const Vi second = vshlq_n_s32(vaddq_s32(rest, iset(127)), 23);
  return vmul(vmul(a, as_float(first)), as_float(second));
}
static inline Vf vzero_below(Vf a, Vf x, float bound) {
  return as_float(vbicq_s32(as_int(a), vreinterpretq_s32_u32(vcltq_f32(x, vset(bound)))));
}

static inline Vf vload_half(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline Vf vload_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline Vi iload_s8(const int8_t* p) {
  const int8x8_t bytes = vcreate_s8(load_as<uint32_t>(p));
  return vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
static inline Vf vload_s8(const int8_t* p) { return vcvtq_f32_s32(iload_s8(p)); }
static inline Vf vload_low_nibbles(const uint8_t* p) {
  const uint8x8_t bytes = vand_u8(vcreate_u8(load_as<uint32_t>(p)), vdup_n_u8(15));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
static inline Vf vload_high_nibbles(const uint8_t* p) {
  const uint8x8_t bytes = vshr_n_u8(vcreate_u8(load_as<uint32_t>(p)), 4);
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
static inline void istore_s8(int8_t* p, Vi a) {
  const int16x4_t words = vqmovn_s32(a);
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
  store_as(p, vget_lane_u32(vreinterpret_u32_s8(bytes), 0));
}
static inline Vf pair_even(Vi a) { return as_float(vshlq_n_s32(a, 16)); }
static inline Vf pair_odd(Vi a) { return as_float(iand(a, iset(int32_t(0xffff0000u)))); }
#ifdef TIDEMILL_I8MM
// Rounds kLanes values of each operand to bf16, in order.
static inline Vi round_bf16_pair(Vf a, Vf b) {
  return vreinterpretq_s32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b));
}
static inline Vf dot_bf16(Vf acc, Vi a, Vi b) {
  return vbfdotq_f32(acc, vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b));
}
#endif
static inline Vf vround_bf16(Vf a) {
  const uint32x4_t u = as_bits(a), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  const uint32x4_t either = vbslq_u32(vceqq_f32(a, a), rounded, quiet);
  return vreinterpretq_f32_u32(vandq_u32(either, vdupq_n_u32(0xffff0000u)));
}

// GCC keeps a tile's sums in registers if each tile size is a function of its own, but not if all sizes
// are one function.
#define TIDEMILL_TILE __attribute__((noinline))

// Four activation bytes for all lanes: sdot selects them from a 16-byte register.
#define TIDEMILL_INT8X4_LANES 1
struct Int8x4 {
  int8x16_t sixteen;
  int lane;
};
static inline Int8x4 act_int8x4(const uint8_t* acts, int i) {
  return {vreinterpretq_s8_u8(vld1q_u8(acts + i / 4 * 16)), i % 4};
}
// The lane is constant once the surrounding loops are unrolled, so one case remains.
static inline __attribute__((always_inline)) Vi dot_q8(Vi acc, Vi w, Int8x4 a) {
  switch (a.lane) {
    case 0: return vdotq_laneq_s32(acc, as_bytes(w), a.sixteen, 0);
    case 1: return vdotq_laneq_s32(acc, as_bytes(w), a.sixteen, 1);
    case 2: return vdotq_laneq_s32(acc, as_bytes(w), a.sixteen, 2);
    default: return vdotq_laneq_s32(acc, as_bytes(w), a.sixteen, 3);
  }
}
static inline Vi nibble_low(Vi w) { return iand(w, iset(0x0f0f0f0f)); }
static inline Vi nibble_high(Vi w) {
  return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(w), 4));
}
static inline Vi itable(const void* p) { return iload(p); }
static inline Vi ilook_up(Vi table, Vi index) {
  return vreinterpretq_s32_s8(vqtbl1q_s8(as_bytes(table), vreinterpretq_u8_s32(index)));
}
// Nibbles and 6-bit values are valid signed bytes.
static inline Vi dot_q4(Vi acc, Vi w, Int8x4 a) { return dot_q8(acc, w, a); }
static inline Vi dot_u6(Vi acc, Vi w, Int8x4 a) { return dot_q8(acc, w, a); }
template <int kBits>
static inline Vi ishift_left(Vi a) {
  if constexpr (kBits > 0) {
    return vshlq_n_s32(a, kBits);
  } else if constexpr (kBits < 0) {
    return from_bits(vshrq_n_u32(as_bits(a), -kBits));
  } else {
    return a;
  }
}
static inline Vi imerge(Vi a, Vi b, Vi mask) { return vorrq_s32(a, iand(b, mask)); }
static inline Vi imadd_pairs(Vi a, Vi b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
static inline void ikeep(Vi& a) { asm("" : "+w"(a)); }
static inline Vi load_scales(const int8_t* p) { return iload_s8(p); }
static inline Vi add_scaled(Vi acc, Vi dots, Vi scales) { return vmlaq_s32(acc, dots, scales); }
static inline Vi ipair_sums(Vi dots) { return dots; }
static inline int32_t dot_start_u6(const int8_t*, int32_t sum) { return -32 * sum; }
static inline Vf keep_range(Vf a, int64_t first, int64_t lo, int64_t hi, float fill) {
  const auto lanes = [](int64_t n) { return iset(int32_t(n < 0 ? 0 : n > kLanes ? kLanes : n)); };
  const int32_t numbers[kLanes] = {0, 1, 2, 3};
  const Vi index = vld1q_s32(numbers);
  const uint32x4_t keep =
      vandq_u32(vcgeq_s32(index, lanes(lo - first)), vcltq_s32(index, lanes(hi - first)));
  return vbslq_f32(keep, a, vset(fill));
}
// Not the builtin: see simd/avx512.h.
static inline void prefetch(const void* p) {
  asm volatile("prfm pldl2keep, %0" : : "Q"(*static_cast<const char*>(p)));
}
static inline void prefetch_streaming(const void* p) {
  asm volatile("prfm pldl2strm, %0" : : "Q"(*static_cast<const char*>(p)));
}
static inline void prefetch_write(void* p) {
  asm volatile("prfm pstl1keep, %0" : : "Q"(*static_cast<char*>(p)));
}

}  // namespace tidemill::TIDEMILL_NEON
