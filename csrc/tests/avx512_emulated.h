// The subset of AVX-512 used by simd/avx512.h, on pairs of AVX2 vectors, to check those kernels on
// machines without AVX-512. Written from the Intel SDM. The names live in the kernels' namespace and
// hide the compiler's. Include before simd/avx512.h, with TIDEMILL_AVX512 (the namespace) and
// TIDEMILL_ISA_NAME defined.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define TIDEMILL_AVX512_EMULATED 1

// Some compilers define those with immediate operands as macros.
#undef _mm512_cmp_ps_mask
#undef _mm512_cmple_epi32_mask
#undef _mm512_mask_cmplt_epi32_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_reduce_ps
#undef _mm512_roundscale_ps
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_ternarylogic_epi32

namespace tidemill::TIDEMILL_AVX512 {

struct __m512 { __m256 low, high; };
struct __m512i { __m256i low, high; };
using __m512bh = __m512i;

#define TIDEMILL_EMULATED static inline __attribute__((always_inline, unused))

// An immediate operand that is not emulated.
TIDEMILL_EMULATED void must(bool holds) {
  if (!holds) __builtin_trap();
}

// --- same as AVX2 on each half ---

#define TIDEMILL_UNARY(name, To, From, ...)        \
  TIDEMILL_EMULATED To name(From a) {              \
    const auto f = [](auto x) { return __VA_ARGS__; }; \
    return {f(a.low), f(a.high)};                  \
  }
#define TIDEMILL_BINARY(name, V, function)                     \
  TIDEMILL_EMULATED V name(V a, V b) {                         \
    return {function(a.low, b.low), function(a.high, b.high)}; \
  }

TIDEMILL_BINARY(_mm512_add_ps, __m512, _mm256_add_ps)
TIDEMILL_BINARY(_mm512_sub_ps, __m512, _mm256_sub_ps)
TIDEMILL_BINARY(_mm512_mul_ps, __m512, _mm256_mul_ps)
TIDEMILL_BINARY(_mm512_div_ps, __m512, _mm256_div_ps)
TIDEMILL_BINARY(_mm512_max_ps, __m512, _mm256_max_ps)  // b if either is NaN or both are zero
TIDEMILL_BINARY(_mm512_min_ps, __m512, _mm256_min_ps)
TIDEMILL_BINARY(_mm512_and_si512, __m512i, _mm256_and_si256)
TIDEMILL_BINARY(_mm512_xor_si512, __m512i, _mm256_xor_si256)
TIDEMILL_BINARY(_mm512_add_epi32, __m512i, _mm256_add_epi32)
TIDEMILL_BINARY(_mm512_mullo_epi32, __m512i, _mm256_mullo_epi32)
TIDEMILL_BINARY(_mm512_sub_epi8, __m512i, _mm256_sub_epi8)
TIDEMILL_BINARY(_mm512_madd_epi16, __m512i, _mm256_madd_epi16)
TIDEMILL_BINARY(_mm512_maddubs_epi16, __m512i, _mm256_maddubs_epi16)
TIDEMILL_BINARY(_mm512_add_epi16, __m512i, _mm256_add_epi16)
TIDEMILL_BINARY(_mm512_shuffle_epi8, __m512i, _mm256_shuffle_epi8)  // within 16 bytes
TIDEMILL_UNARY(_mm512_castps_si512, __m512i, __m512, _mm256_castps_si256(x))
TIDEMILL_UNARY(_mm512_castsi512_ps, __m512, __m512i, _mm256_castsi256_ps(x))
TIDEMILL_UNARY(_mm512_cvtps_epi32, __m512i, __m512, _mm256_cvtps_epi32(x))
TIDEMILL_UNARY(_mm512_cvtepi32_ps, __m512, __m512i, _mm256_cvtepi32_ps(x))
TIDEMILL_UNARY(_mm512_abs_ps, __m512, __m512, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x))

TIDEMILL_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
TIDEMILL_EMULATED __m512 _mm512_set1_ps(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TIDEMILL_EMULATED __m512 _mm512_setzero_ps() { return _mm512_set1_ps(0.0f); }
TIDEMILL_EMULATED __m512i _mm512_set1_epi32(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
TIDEMILL_EMULATED __m512 _mm512_loadu_ps(const void* p) {
  const float* from = static_cast<const float*>(p);
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
TIDEMILL_EMULATED void _mm512_storeu_ps(void* p, __m512 a) {
  float* to = static_cast<float*>(p);
  _mm256_storeu_ps(to, a.low), _mm256_storeu_ps(to + 8, a.high);
}
TIDEMILL_EMULATED void _mm512_stream_ps(void* p, __m512 a) { _mm512_storeu_ps(p, a); }
TIDEMILL_EMULATED __m512i _mm512_loadu_si512(const void* p) {
  const __m256i* from = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
TIDEMILL_EMULATED void _mm512_storeu_si512(void* p, __m512i a) {
  __m256i* to = static_cast<__m256i*>(p);
  _mm256_storeu_si256(to, a.low), _mm256_storeu_si256(to + 1, a.high);
}
TIDEMILL_EMULATED __m512i _mm512_slli_epi32(__m512i a, int count) {
  return {_mm256_slli_epi32(a.low, count), _mm256_slli_epi32(a.high, count)};
}
TIDEMILL_EMULATED __m512i _mm512_srli_epi32(__m512i a, int count) {
  return {_mm256_srli_epi32(a.low, count), _mm256_srli_epi32(a.high, count)};
}
TIDEMILL_EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
}
TIDEMILL_EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))};
}
TIDEMILL_EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
  return {_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))};
}
TIDEMILL_EMULATED __m512i _mm512_cvtepu8_epi32(__m128i a) {
  return {_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))};
}
TIDEMILL_EMULATED __m512i _mm512_broadcast_i32x4(__m128i a) {
  return {_mm256_broadcastsi128_si256(a), _mm256_broadcastsi128_si256(a)};
}
TIDEMILL_EMULATED __m512i _mm512_zextsi256_si512(__m256i a) { return {a, _mm256_setzero_si256()}; }
TIDEMILL_EMULATED __m256 _mm512_castps512_ps256(__m512 a) { return a.low; }
TIDEMILL_EMULATED __m256 _mm512_extractf32x8_ps(__m512 a, int half) {
  return half & 1 ? a.high : a.low;
}
TIDEMILL_EMULATED __m512 _mm512_setr_ps(float a, float b, float c, float d, float e, float f,
                                        float g, float h, float i, float j, float k, float l,
                                        float m, float n, float o, float p) {
  return {_mm256_setr_ps(a, b, c, d, e, f, g, h), _mm256_setr_ps(i, j, k, l, m, n, o, p)};
}

// --- masks: one bit per lane ---

// Lane mask of eight lanes starting at bit `first`.
TIDEMILL_EMULATED __m256i mask_lanes(__mmask16 mask, int first) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask >> first), bit), bit);
}
TIDEMILL_EMULATED __m512i mask_lanes(__mmask16 mask) {
  return {mask_lanes(mask, 0), mask_lanes(mask, 8)};
}
// Memory of masked-off lanes is neither read nor written.
TIDEMILL_EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* p) {
  const float* from = static_cast<const float*>(p);
  const __m512i keep = mask_lanes(mask);
  return {_mm256_maskload_ps(from, keep.low), _mm256_maskload_ps(from + 8, keep.high)};
}
TIDEMILL_EMULATED void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 a) {
  float* to = static_cast<float*>(p);
  const __m512i keep = mask_lanes(mask);
  _mm256_maskstore_ps(to, keep.low, a.low), _mm256_maskstore_ps(to + 8, keep.high, a.high);
}
TIDEMILL_EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  const __m512 second = _mm512_castsi512_ps(mask_lanes(mask));
  return {_mm256_blendv_ps(a.low, b.low, second.low),
          _mm256_blendv_ps(a.high, b.high, second.high)};
}
TIDEMILL_EMULATED __m512i _mm512_mask_or_epi32(__m512i other, __mmask16 mask, __m512i a,
                                               __m512i b) {
  const __m512i keep = mask_lanes(mask);
  return {_mm256_blendv_epi8(other.low, _mm256_or_si256(a.low, b.low), keep.low),
          _mm256_blendv_epi8(other.high, _mm256_or_si256(a.high, b.high), keep.high)};
}
TIDEMILL_EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  must(predicate == _CMP_UNORD_Q || predicate == _CMP_NLT_UQ);
  const auto holds = [&](__m256 x, __m256 y) {
    return _mm256_movemask_ps(predicate == _CMP_UNORD_Q ? _mm256_cmp_ps(x, y, _CMP_UNORD_Q)
                                                        : _mm256_cmp_ps(x, y, _CMP_NLT_UQ));
  };
  return __mmask16(holds(a.low, b.low) | holds(a.high, b.high) << 8);
}

// --- not available in AVX2 ---

// Bit 4 x + 2 y + z of the table is the result for bits x of a, y of b and z of c.
TIDEMILL_EMULATED __m256i three_bits(__m256i a, __m256i b, __m256i c, int table) {
  __m256i r = _mm256_setzero_si256();
  const __m256i ones = _mm256_set1_epi32(-1);
  for (int i = 0; i < 8; ++i) {
    if (!(table >> i & 1)) continue;
    const __m256i x = i & 4 ? a : _mm256_xor_si256(a, ones);
    const __m256i y = i & 2 ? b : _mm256_xor_si256(b, ones);
    const __m256i z = i & 1 ? c : _mm256_xor_si256(c, ones);
    r = _mm256_or_si256(r, _mm256_and_si256(x, _mm256_and_si256(y, z)));
  }
  return r;
}
TIDEMILL_EMULATED __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
  return {three_bits(a.low, b.low, c.low, table), three_bits(a.high, b.high, c.high, table)};
}

// Any lane of a, selected by the low four bits of an index.
TIDEMILL_EMULATED __m256 permuted(__m256i index, __m512 a) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));  // by the sign
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(a.low, index),
                          _mm256_permutevar8x32_ps(a.high, index), upper);
}
// Any lane of a, then of b, selected by the low five bits of an index.
TIDEMILL_EMULATED __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b) {
  const __m256i second_low = _mm256_slli_epi32(index.low, 27);  // by the sign
  const __m256i second_high = _mm256_slli_epi32(index.high, 27);
  return {_mm256_blendv_ps(permuted(index.low, a), permuted(index.low, b),
                           _mm256_castsi256_ps(second_low)),
          _mm256_blendv_ps(permuted(index.high, a), permuted(index.high, b),
                           _mm256_castsi256_ps(second_high))};
}
TIDEMILL_EMULATED __m512 _mm512_permutexvar_ps(__m512i index, __m512 a) {
  return {permuted(index.low, a), permuted(index.high, a)};
}

// vpmovsdb saturates.
TIDEMILL_EMULATED __m128i _mm512_cvtsepi32_epi8(__m512i a) {
  int32_t from[16];
  int8_t to[16];
  _mm512_storeu_si512(from, a);
  for (int i = 0; i < 16; ++i)
    to[i] = int8_t(from[i] < -128 ? -128 : from[i] > 127 ? 127 : from[i]);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(to));
}

// vrndscaleps: the immediate's high four bits give the number of fraction bits.
TIDEMILL_EMULATED __m512 _mm512_roundscale_ps(__m512 a, int immediate) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  must(immediate == kNearestEven);
  return {_mm256_round_ps(a.low, kNearestEven), _mm256_round_ps(a.high, kNearestEven)};
}

TIDEMILL_EMULATED __mmask16 _mm512_cmple_epi32_mask(__m512i a, __m512i b) {
  int32_t left[16], right[16], mask = 0;
  _mm512_storeu_si512(left, a), _mm512_storeu_si512(right, b);
  for (int i = 0; i < 16; ++i) mask |= int(left[i] <= right[i]) << i;
  return __mmask16(mask);
}
TIDEMILL_EMULATED __mmask16 _mm512_mask_cmplt_epi32_mask(__mmask16 of, __m512i a, __m512i b) {
  return __mmask16(of & ~_mm512_cmple_epi32_mask(b, a));
}

// vreduceps: x - floor(x); of an infinity, zero.
TIDEMILL_EMULATED __m512 _mm512_reduce_ps(__m512 a, int immediate) {
  must(immediate == (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  float of[16], to[16];
  _mm512_storeu_ps(of, a);
  for (int i = 0; i < 16; ++i)
    to[i] = __builtin_isinf(of[i]) ? 0.0f : of[i] - __builtin_floorf(of[i]);
  return _mm512_loadu_ps(to);
}

// One lane of vscalefps: a * 2^floor(n), rounded once; the SDM's table for non-finite operands.
TIDEMILL_EMULATED float scaled(float a, float n) {
  const float infinity = __builtin_inff();
  if (__builtin_isnan(n)) return __builtin_isnan(a) ? a + a : n + n;
  if (__builtin_isnan(a)) {
    const bool quiet = __builtin_bit_cast(uint32_t, a) & 0x400000u;
    if (quiet && __builtin_isinf(n)) return n > 0 ? infinity : 0.0f;
    return a + a;
  }
  if (n == -infinity) return __builtin_isinf(a) ? __builtin_nanf("") : __builtin_copysignf(0, a);
  if (n == infinity) return a == 0 ? __builtin_nanf("") : __builtin_copysignf(infinity, a);
  // A double holds every product up to 2^+-400, which exceeds a float either way.
  const int power = int(n < -400 ? -400.0f : n > 400 ? 400.0f : __builtin_floorf(n));
  return float(double(a) * __builtin_bit_cast(double, uint64_t(1023 + power) << 52));
}
TIDEMILL_EMULATED __m512 _mm512_scalef_ps(__m512 a, __m512 n) {
  float from[16], power[16], to[16];
  _mm512_storeu_ps(from, a), _mm512_storeu_ps(power, n);
  for (int i = 0; i < 16; ++i) to[i] = scaled(from[i], power[i]);
  return _mm512_loadu_ps(to);
}

// GCC's order: the upper half is always the first operand.
TIDEMILL_EMULATED float _mm512_reduce_max_ps(__m512 a) {
  const __m256 half = _mm256_max_ps(a.high, a.low);
  __m128 q = _mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
  q = _mm_max_ps(q, _mm_shuffle_ps(q, q, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtss_f32(_mm_max_ps(q, _mm_shuffle_ps(q, q, _MM_SHUFFLE(0, 1, 0, 1))));
}
TIDEMILL_EMULATED int32_t _mm512_reduce_add_epi32(__m512i a) {
  uint32_t lanes[16], sum = 0;  // which wrap
  _mm512_storeu_si512(lanes, a);
  for (uint32_t lane : lanes) sum += lane;
  return int32_t(sum);
}

// vpdpbusd: adds four products of an unsigned byte of a and a signed byte of b to a lane, with 32-bit
// wrap. Even and odd bytes are multiplied in 16 bits, where all products fit.
TIDEMILL_EMULATED __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
TIDEMILL_EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  return {dot_bytes(sum.low, a.low, b.low), dot_bytes(sum.high, a.high, b.high)};
}

// --- AVX512_BF16: subnormal inputs and results are zero in every mode ---

TIDEMILL_EMULATED __m256 without_subnormals(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
  const __m256i small = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i drop = _mm256_and_si256(small, _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_andnot_si256(drop, bits));
}

// bf16 in the lower half of each lane.
TIDEMILL_EMULATED __m256i to_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(without_subnormals(x));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
// The second operand's values come first.
TIDEMILL_EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b) {
  const auto joined = [](__m256i x, __m256i y) {  // packing works per 16 bytes: restore the order
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), _MM_SHUFFLE(3, 1, 2, 0));
  };
  return {joined(to_bf16(b.low), to_bf16(b.high)), joined(to_bf16(a.low), to_bf16(a.high))};
}

// vdpbf16ps: adds the odd elements' product first, then the even elements', each by a fused
// multiply-add.
TIDEMILL_EMULATED __m256 dot_pairs(__m256 sum, __m256i a, __m256i b) {
  const auto even = [](__m256i x) {
    return without_subnormals(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
  };
  const auto odd = [](__m256i x) {
    const __m256i upper = _mm256_and_si256(x, _mm256_set1_epi32(int32_t(0xffff0000u)));
    return without_subnormals(_mm256_castsi256_ps(upper));
  };
  sum = without_subnormals(_mm256_fmadd_ps(odd(a), odd(b), without_subnormals(sum)));
  return without_subnormals(_mm256_fmadd_ps(even(a), even(b), sum));
}
TIDEMILL_EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  return {dot_pairs(sum.low, a.low, b.low), dot_pairs(sum.high, a.high, b.high)};
}

#undef TIDEMILL_BINARY
#undef TIDEMILL_UNARY
#undef TIDEMILL_EMULATED

}  // namespace tidemill::TIDEMILL_AVX512
