// Vector wrapper over AVX-512 F/BW/VL/DQ and VNNI. Semantics of each function: portable.h.
// With TIDEMILL_BF16_DOT also over AVX512_BF16, a separate table: vdpbf16ps is twice as fast as two fused
// multiply-adds on Zen 4, but slower than they are on Sapphire Rapids.
// With TIDEMILL_PAIR_DOTS without VNNI, a separate table: for Skylake servers.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// With TIDEMILL_AMX, matrix products of bf16, quantized weights and int8 use tile registers. The
// emulated tables of the checks define their own names (csrc/tests).
#ifndef TIDEMILL_AVX512
#if defined(TIDEMILL_AMX)
#define TIDEMILL_AVX512 amx
#define TIDEMILL_ISA_NAME "amx"
#elif defined(TIDEMILL_BF16_DOT)
#define TIDEMILL_AVX512 avx512bf16
#define TIDEMILL_ISA_NAME "avx512bf16"
#elif defined(TIDEMILL_PAIR_DOTS)
#define TIDEMILL_AVX512 avx512bw
#define TIDEMILL_ISA_NAME "avx512bw"
#else
#define TIDEMILL_AVX512 avx512
#define TIDEMILL_ISA_NAME "avx512"
#endif
#endif
#if defined(TIDEMILL_AMX) || defined(TIDEMILL_BF16_DOT)
#define TIDEMILL_BF16_PAIRS 1  // bf16 activations are packed as pairs
#endif

namespace tidemill::TIDEMILL_AVX512 {
#include "kernels/simd/scalar.inl"

constexpr const char* kIsaName = TIDEMILL_ISA_NAME;
#if defined(TIDEMILL_AMX)
constexpr uint32_t kQ8Flip = 0;  // tiles multiply signed bytes
#else
constexpr uint32_t kQ8Flip = 0x80808080u;
#endif
#if defined(TIDEMILL_BF16_PAIRS)
constexpr bool kBf16Pairs = true;
#else
constexpr bool kBf16Pairs = false;
#endif
constexpr int kLanes = 16;
constexpr int kDotBytes = 4;
constexpr bool kQ4Offset = true;
constexpr bool kQ8Offset = true;  // vpdpbusd multiplies q + 128
#ifndef TIDEMILL_PAIR_DOTS
constexpr bool kPairDots = false;
constexpr int64_t kPrefetchRowsQ8 = 5, kPrefetchRowsQ4 = 3, kPrefetchRowsK = 3;
#endif
constexpr int kI8Vecs = 2, kI8Rows = 6;
constexpr int kBlockVecs = 2, kBlockRows = 6;
constexpr int kFloatVecs = 2, kFloatRows = 12;
constexpr int kScoreVecs = 2, kScoreRows = 12;
constexpr int kAccRegisters = 24;
constexpr int64_t kPrefetchRowsFloat = 7;
constexpr int64_t kPrefetchBytes = int64_t(1) << 30;  // a panel

using Vf = __m512;
using Vi = __m512i;

static inline __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : __mmask16((1u << n) - 1u);
}
static inline Vf vset(float x) { return _mm512_set1_ps(x); }
static inline Vf vzero() { return _mm512_setzero_ps(); }
static inline Vf vload(const float* p) { return _mm512_loadu_ps(p); }
static inline void vstore(float* p, Vf a) { _mm512_storeu_ps(p, a); }
static inline Vf vload_n(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
static inline void vstore_n(float* p, Vf a, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a);
}
// Non-temporal store of a whole line; call streams_end() before other threads read it.
static inline void vstream(float* p, Vf a) { _mm512_stream_ps(p, a); }
static inline void streams_end() { _mm_sfence(); }
static inline Vf vadd(Vf a, Vf b) { return _mm512_add_ps(a, b); }
static inline Vf vsub(Vf a, Vf b) { return _mm512_sub_ps(a, b); }
static inline Vf vmul(Vf a, Vf b) { return _mm512_mul_ps(a, b); }
static inline Vf vdiv(Vf a, Vf b) { return _mm512_div_ps(a, b); }
static inline Vf vmax(Vf a, Vf b) { return _mm512_max_ps(a, b); }
static inline Vf vmin(Vf a, Vf b) { return _mm512_min_ps(a, b); }
static inline Vf vabs(Vf a) { return _mm512_abs_ps(a); }
static inline Vf vfma(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline void vadd_product(Vf& sum, Vf a, Vf b) { sum = vfma(a, b, sum); }
static inline float vreduce_add(Vf a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float vreduce_max(Vf a) { return _mm512_reduce_max_ps(a); }

static inline Vi iset(int32_t x) { return _mm512_set1_epi32(x); }
static inline Vi iload(const void* p) { return _mm512_loadu_si512(p); }
static inline void istore(void* p, Vi a) { _mm512_storeu_si512(p, a); }
static inline Vi ibroadcast(const void* p) { return _mm512_set1_epi32(load_as<int32_t>(p)); }
static inline Vi iand(Vi a, Vi b) { return _mm512_and_si512(a, b); }
static inline Vi iadd(Vi a, Vi b) { return _mm512_add_epi32(a, b); }
static inline Vi isub_bytes(Vi a, Vi b) { return _mm512_sub_epi8(a, b); }
static inline int32_t ireduce_add(Vi a) { return _mm512_reduce_add_epi32(a); }
static inline Vf as_float(Vi a) { return _mm512_castsi512_ps(a); }
static inline Vi as_int(Vf a) { return _mm512_castps_si512(a); }
static inline Vf vconvert(Vi a) { return _mm512_cvtepi32_ps(a); }
static inline Vi vround(Vf a) { return _mm512_cvtps_epi32(a); }
static inline Vf vround_float(Vf a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Subtracts floor(n).
static inline Vf vscale2(Vf a, Vf n) { return _mm512_scalef_ps(a, n); }
// See powers.inl.
#define TIDEMILL_FRACTIONS 1
static inline Vf vfraction(Vf a) { return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
static inline Vf vscale2_whole(Vf a, Vf x, Vf) { return vscale2(a, x); }
static inline Vf vzero_below(Vf a, Vf x, float bound) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, vset(bound), _CMP_NLT_UQ), vzero(), a);
}

static inline Vf vload_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline Vf vload_bf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline Vi iload_s8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Vf vload_s8(const int8_t* p) { return _mm512_cvtepi32_ps(iload_s8(p)); }
static inline __m512i load_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// A lookup uses only the low four bits of its index.
static inline Vf nibble_values(__m512i index) {
  return _mm512_permutexvar_ps(
      index, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
static inline Vf vload_low_nibbles(const uint8_t* p) { return nibble_values(load_bytes(p)); }
static inline Vf vload_high_nibbles(const uint8_t* p) {
  return nibble_values(_mm512_srli_epi32(load_bytes(p), 4));
}
static inline void istore_s8(int8_t* p, Vi a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a));
}
static inline Vf pair_even(Vi a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
static inline Vf pair_odd(Vi a) {
  return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(int32_t(0xffff0000u))));
}
// Round to nearest even in integer arithmetic: vcvtneps2bf16 would flush subnormals.
static inline Vi round_bf16(Vf x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i r =
      _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
}
static inline Vf vround_bf16(Vf a) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(round_bf16(a), _mm512_set1_epi32(int32_t(0xffff0000u))));
}
#ifdef TIDEMILL_BF16_PAIRS
// Rounds 16 values of each operand to bf16, in order. Subnormals become zero, as in bf16 dot products
// and tiles.
static inline Vi round_bf16_pair(Vf a, Vf b) {
  return __m512i(_mm512_cvtne2ps_pbh(b, a));
}
#endif
#ifdef TIDEMILL_BF16_DOT
static inline Vf dot_bf16(Vf acc, Vi a, Vi b) {
  return _mm512_dpbf16_ps(acc, __m512bh(a), __m512bh(b));
}
#endif
static inline Vi nibble_low(Vi w) { return iand(w, _mm512_set1_epi32(0x0f0f0f0f)); }
static inline Vi nibble_high(Vi w) {
  return iand(_mm512_srli_epi32(w, 4), _mm512_set1_epi32(0x0f0f0f0f));
}
static inline Vi itable(const void* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
static inline Vi ilook_up(Vi table, Vi index) { return _mm512_shuffle_epi8(table, index); }
template <int kBits>
static inline Vi ishift_left(Vi a) {
  return kBits >= 0 ? _mm512_slli_epi32(a, kBits) : _mm512_srli_epi32(a, -kBits);
}
static inline Vi imerge(Vi a, Vi b, Vi mask) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}
static inline Vi imadd_pairs(Vi a, Vi b) { return _mm512_madd_epi16(a, b); }
#ifdef TIDEMILL_AVX512_EMULATED
static inline void ikeep(Vi&) {}  // two registers; the assembly constraint takes only one
#else
static inline void ikeep(Vi& a) { asm("" : "+v"(a)); }
#endif
#ifdef TIDEMILL_PAIR_DOTS
static inline Vi iadd_pairs(Vi a, Vi b) { return _mm512_add_epi16(a, b); }
static inline Vi imadd_bytes(Vi a, Vi b) { return _mm512_maddubs_epi16(a, b); }
static inline Vi ixor(Vi a, Vi b) { return _mm512_xor_si512(a, b); }
static inline Vi iwiden(__m256i a) { return _mm512_zextsi256_si512(a); }
#include "kernels/simd/pair_dots.inl"
#else
static inline Vi dot_q8(Vi acc, Vi w, Vi a) {
#ifdef TIDEMILL_AMX
  w = _mm512_xor_si512(w, _mm512_set1_epi32(int32_t(0x80808080u)));
#endif
  return _mm512_dpbusd_epi32(acc, w, a);
}
static inline Vi dot_q4(Vi acc, Vi w, Vi a) { return _mm512_dpbusd_epi32(acc, w, a); }
static inline Vi dot_u6(Vi acc, Vi w, Vi a) { return _mm512_dpbusd_epi32(acc, w, a); }
static inline Vi load_scales(const int8_t* p) { return iload_s8(p); }
static inline Vi add_scaled(Vi acc, Vi dots, Vi scales) {
  return _mm512_add_epi32(acc, _mm512_mullo_epi32(dots, scales));
}
static inline Vi ipair_sums(Vi dots) { return dots; }
static inline int32_t dot_start_u6(const int8_t*, int32_t sum) { return -32 * sum; }
#endif
#ifdef TIDEMILL_AMX
// The even (0) or odd (1) lanes of a, then of b.
template <int kOdd>
static inline Vf every_second(Vf a, Vf b) {
  alignas(64) static constexpr int32_t kIndex[kLanes] = {
      kOdd,      kOdd + 2,  kOdd + 4,  kOdd + 6,  kOdd + 8,  kOdd + 10, kOdd + 12, kOdd + 14,
      kOdd + 16, kOdd + 18, kOdd + 20, kOdd + 22, kOdd + 24, kOdd + 26, kOdd + 28, kOdd + 30};
  return _mm512_permutex2var_ps(a, iload(kIndex), b);
}
// a where lo <= at < hi, else fill.
static inline Vf keep_within(Vf a, Vi at, Vi lo, Vi hi, float fill) {
  const __mmask16 keep = _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(lo, at), at, hi);
  return _mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), a);
}
#endif
static inline Vf keep_range(Vf a, int64_t first, int64_t lo, int64_t hi, float fill) {
  const __mmask16 keep = first_lanes(hi - first) & __mmask16(~first_lanes(lo - first));
  return _mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), a);
}
// Into L2. Not the intrinsic, because GCC removes calls to functions that only prefetch.
static inline void prefetch(const void* p) {
  asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p)));
}
// Non-temporal: evicted from L2 without moving to L3.
static inline void prefetch_streaming(const void* p) {
  asm volatile("prefetchnta %0" : : "m"(*static_cast<const char*>(p)));
}
// Into L1.
static inline void prefetch_near(const void* p) {
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
}
// Into L1 for writing. A no-op on processors without it.
static inline void prefetch_write(void* p) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(p)));
}

}  // namespace tidemill::TIDEMILL_AVX512
