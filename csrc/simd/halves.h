// Vectors of 32 halves or 16-bit integers, with which weights are widened to bf16 beside AMX's tiles.
// What AVX512-FP16 adds is assembly, which needs no option of the compiler's; every processor with
// tiles has it. The check has the same in plain C++ (tests/halves_emulated.h).
#pragma once

namespace tidemill::TIDEMILL_AVX512 {

// 32 bytes, each with its sign.
static inline __m512i words_of_bytes(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline __m512i words_set(int value) { return _mm512_set1_epi16(int16_t(value)); }
// Bits move to the right by kBits, to the left where it is negative.
template <int kBits>
static inline __m512i words_shift(__m512i a) {
  if constexpr (kBits == 0) return a;
  if constexpr (kBits < 0) return _mm512_slli_epi16(a, unsigned(-kBits));
  return _mm512_srli_epi16(a, unsigned(kBits));
}
// Lane i becomes the table's lane that the low five bits of index lane i name.
static inline __m512i words_look_up(__m512i table, __m512i index) {
  return _mm512_permutexvar_epi16(index, table);
}
// b where mask has ones, else a.
static inline __m512i bits_select(__m512i a, __m512i b, __m512i mask) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xd8);
}

static inline __m512i halves_of_words(__m512i a) {
  __asm__("vcvtw2ph %0, %0" : "+v"(a));
  return a;
}
static inline __m512i halves_mul(__m512i a, __m512i b) {
  __asm__("vmulph %1, %0, %0" : "+v"(a) : "v"(b));
  return a;
}
// a * b + c, rounded once.
static inline __m512i halves_fma(__m512i a, __m512i b, __m512i c) {
  __asm__("vfmadd213ph %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
  return a;
}
// Halves as bf16 of 2^-16 times their value, rounded to nearest, away from zero between two. A half of
// less than 2^-14, zero too, comes out as one of the size of 2^-31.
static inline __m512i halves_to_bf16(__m512i a) {
  // (a + 4) >> 3 leaves seven bits of the fraction, the exponent and copies of the sign, of which one
  // stays; the exponent, 112 too low then, is 16 too low with the bits of 96, which it cannot have.
  const __m512i shifted = _mm512_mulhrs_epi16(a, _mm512_set1_epi16(1 << 12));
  return _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi16(int16_t(0x8fff)),
                                   _mm512_set1_epi16(0x3000), 0xea);
}

}  // namespace tidemill::TIDEMILL_AVX512
