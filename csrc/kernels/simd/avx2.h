// Vector wrapper over AVX2, FMA and F16C. Meaning of each function: portable.h.
// With TIDEMILL_AVXVNNI dot products of bytes are one instruction, as a table of its own.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#if defined(TIDEMILL_AVXVNNI_EMULATED)
#define TIDEMILL_AVX2 avxvnni_emulated
#elif defined(TIDEMILL_AVXVNNI)
#define TIDEMILL_AVX2 avxvnni
#else
#define TIDEMILL_AVX2 avx2
#endif

namespace tidemill::TIDEMILL_AVX2 {
#include "kernels/simd/scalar.inl"

#if defined(TIDEMILL_AVXVNNI)
#ifdef TIDEMILL_AVXVNNI_EMULATED
constexpr const char* kIsaName = "avxvnni-emulated";
#else
constexpr const char* kIsaName = "avxvnni";
#endif
constexpr bool kPairDots = false;
constexpr int64_t kPrefetchRowsQ8 = 5, kPrefetchRowsQ4 = 3, kPrefetchRowsK = 3;
#else
constexpr const char* kIsaName = "avx2";
#endif
constexpr int kLanes = 8;
constexpr int kDotBytes = 4;
constexpr uint32_t kQ8Flip = 0x80808080u;
constexpr bool kQ8Offset = true;  // vpdpbusd multiplies q + 128
constexpr bool kQ4Offset = true;
constexpr bool kBf16Pairs = false;
constexpr int kI8Vecs = 2, kI8Rows = 4;
constexpr int kBlockVecs = 2, kBlockRows = 4;
constexpr int kFloatVecs = 2, kFloatRows = 6;
constexpr int kScoreVecs = 2, kScoreRows = 6;
constexpr int kAccRegisters = 12;
constexpr int64_t kPrefetchRowsFloat = 7;
constexpr int64_t kPrefetchBytes = 8 << 10;

using Vf = __m256;
using Vi = __m256i;

static inline __m256i first_lanes(int64_t n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int32_t count = n > 8 ? 8 : n < 0 ? 0 : int32_t(n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), index);
}
static inline Vf vset(float x) { return _mm256_set1_ps(x); }
static inline Vf vzero() { return _mm256_setzero_ps(); }
static inline Vf vload(const float* p) { return _mm256_loadu_ps(p); }
static inline void vstore(float* p, Vf a) { _mm256_storeu_ps(p, a); }
// Masked accesses only for tails: on AMD a masked store costs many times a plain one.
static inline Vf vload_n(const float* p, int64_t n) {
  return n >= kLanes ? vload(p) : _mm256_maskload_ps(p, first_lanes(n));
}
static inline void vstore_n(float* p, Vf a, int64_t n) {
  if (n >= kLanes) return vstore(p, a);
  _mm256_maskstore_ps(p, first_lanes(n), a);
}
static inline Vf vadd(Vf a, Vf b) { return _mm256_add_ps(a, b); }
static inline Vf vsub(Vf a, Vf b) { return _mm256_sub_ps(a, b); }
static inline Vf vmul(Vf a, Vf b) { return _mm256_mul_ps(a, b); }
static inline Vf vdiv(Vf a, Vf b) { return _mm256_div_ps(a, b); }
static inline Vf vmax(Vf a, Vf b) { return _mm256_max_ps(a, b); }
static inline Vf vmin(Vf a, Vf b) { return _mm256_min_ps(a, b); }
static inline Vf vabs(Vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline Vf vfma(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }
// Updated in place: in other forms GCC moves a tile's sums between registers, and to memory.
static inline void vadd_product(Vf& sum, Vf a, Vf b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "xm"(b));
}
static inline float vreduce_add(Vf a) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float vreduce_max(Vf a) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline Vi iset(int32_t x) { return _mm256_set1_epi32(x); }
static inline Vi iload(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline void istore(void* p, Vi a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
}
static inline Vi ibroadcast(const void* p) { return _mm256_set1_epi32(load_as<int32_t>(p)); }
static inline Vi iand(Vi a, Vi b) { return _mm256_and_si256(a, b); }
static inline Vi iadd(Vi a, Vi b) { return _mm256_add_epi32(a, b); }
static inline int32_t ireduce_add(Vi a) {
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
static inline Vf as_float(Vi a) { return _mm256_castsi256_ps(a); }
static inline Vi as_int(Vf a) { return _mm256_castps_si256(a); }
static inline Vf vconvert(Vi a) { return _mm256_cvtepi32_ps(a); }
static inline Vi vround(Vf a) { return _mm256_cvtps_epi32(a); }
static inline Vf vround_float(Vf a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Vf vfloor(Vf a) { return _mm256_floor_ps(a); }
static inline Vf vscale2(Vf a, Vf n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)),
                       _mm256_castsi256_ps(second));
}
static inline Vf vzero_below(Vf a, Vf x, float bound) {
  return _mm256_and_ps(a, _mm256_cmp_ps(x, vset(bound), _CMP_NLT_UQ));
}

static inline Vf vload_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Vf vload_bf16(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline Vi iload_s8(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline Vf vload_s8(const int8_t* p) { return _mm256_cvtepi32_ps(iload_s8(p)); }
static inline __m256i load_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline Vf vload_low_nibbles(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(load_bytes(p), _mm256_set1_epi32(15)));
}
static inline Vf vload_high_nibbles(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(load_bytes(p), 4));
}
// 32 bytes at once: stored in eights, a load that follows would wait for the stores to retire.
#define TIDEMILL_STORE_GROUP_S8 1
static inline void istore_group_s8(int8_t* p, const Vi (&q)[4]) {
  const __m256i first = _mm256_packs_epi32(q[0], q[1]), last = _mm256_packs_epi32(q[2], q[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  istore(p, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, last), order));
}
static inline Vf pair_even(Vi a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
static inline Vf pair_odd(Vi a) {
  return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(int32_t(0xffff0000u))));
}
static inline Vi round_bf16(Vf x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(quiet), nan));
}
static inline Vf vround_bf16(Vf a) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(round_bf16(a), _mm256_set1_epi32(int32_t(0xffff0000u))));
}
static inline void ikeep(Vi& a) { asm("" : "+x"(a)); }
#ifdef TIDEMILL_AVXVNNI
static inline Vi dot_q8(Vi acc, Vi w, Vi a) {
#ifdef TIDEMILL_AVXVNNI_EMULATED
  const __m256i low = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)),
                                        _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8));
  const __m256i high = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(a, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(low, high));
#else
  return _mm256_dpbusd_avx_epi32(acc, w, a);
#endif
}
static inline Vi dot_q4(Vi acc, Vi w, Vi a) { return dot_q8(acc, w, a); }
static inline Vi dot_u6(Vi acc, Vi w, Vi a) { return dot_q8(acc, w, a); }
static inline Vi load_scales(const int8_t* p) { return iload_s8(p); }
static inline Vi add_scaled(Vi acc, Vi dots, Vi scales) {
  return _mm256_add_epi32(acc, _mm256_mullo_epi32(dots, scales));
}
static inline Vi ipair_sums(Vi dots) { return dots; }
static inline int32_t dot_start_u6(const int8_t*, int32_t sum) { return -32 * sum; }
#endif
static inline Vi nibble_low(Vi w) { return iand(w, _mm256_set1_epi32(0x0f0f0f0f)); }
static inline Vi nibble_high(Vi w) {
  return iand(_mm256_srli_epi32(w, 4), _mm256_set1_epi32(0x0f0f0f0f));
}
static inline Vi itable(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
static inline Vi ilook_up(Vi table, Vi index) { return _mm256_shuffle_epi8(table, index); }
template <int kBits>
static inline Vi ishift_left(Vi a) {
  return kBits >= 0 ? _mm256_slli_epi32(a, kBits) : _mm256_srli_epi32(a, -kBits);
}
static inline Vi imerge(Vi a, Vi b, Vi mask) { return _mm256_or_si256(a, iand(b, mask)); }
static inline Vi imadd_pairs(Vi a, Vi b) { return _mm256_madd_epi16(a, b); }
#ifndef TIDEMILL_AVXVNNI
static inline Vi iadd_pairs(Vi a, Vi b) { return _mm256_add_epi16(a, b); }
static inline Vi imadd_bytes(Vi a, Vi b) { return _mm256_maddubs_epi16(a, b); }
static inline Vi ixor(Vi a, Vi b) { return _mm256_xor_si256(a, b); }
static inline Vi iwiden(__m256i a) { return a; }
#include "kernels/simd/pair_dots.inl"
#endif
static inline Vf keep_range(Vf a, int64_t first, int64_t lo, int64_t hi, float fill) {
  const __m256i keep = _mm256_andnot_si256(first_lanes(lo - first), first_lanes(hi - first));
  return _mm256_blendv_ps(_mm256_set1_ps(fill), a, _mm256_castsi256_ps(keep));
}
// Into L2. Not the intrinsic, because GCC removes calls to functions that only prefetch.
static inline void prefetch(const void* p) {
  asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p)));
}
// Non-temporal: evicted from L2 without moving to L3.
static inline void prefetch_streaming(const void* p) {
  asm volatile("prefetchnta %0" : : "m"(*static_cast<const char*>(p)));
}
// Into L1 for writing. A no-op on processors without it.
static inline void prefetch_write(void* p) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(p)));
}

}  // namespace tidemill::TIDEMILL_AVX2
