// Vectors of 32 halves or 16-bit integers, used to dequantize weights to bf16 for AMX. AVX512-FP16
// instructions are inline assembly, which needs no compiler option; every processor with AMX has them.
// The checks use plain C++ instead (tests/halves_emulated.h).
#pragma once

namespace tidemill::TIDEMILL_AVX512 {

// 32 bytes, sign-extended.
static inline __m512i words_of_bytes(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline __m512i words_set(int value) { return _mm512_set1_epi16(int16_t(value)); }
// Shifts right by kBits, left if it is negative.
template <int kBits>
static inline __m512i words_shift(__m512i a) {
  if constexpr (kBits == 0) return a;
  if constexpr (kBits < 0) return _mm512_slli_epi16(a, unsigned(-kBits));
  return _mm512_srli_epi16(a, unsigned(kBits));
}
// Lane i becomes the table's lane selected by the low five bits of index lane i.
static inline __m512i words_look_up(__m512i table, __m512i index) {
  return _mm512_permutexvar_epi16(index, table);
}
// b where mask bits are 1, else a.
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
// Converts halves to bf16 with 2^-16 of their value, rounded to nearest, ties away from zero. Halves
// below 2^-14, also zero, become values of magnitude 2^-31.
static inline __m512i halves_to_bf16(__m512i a) {
  // (a + 4) >> 3 leaves seven fraction bits, the exponent and copies of the sign, of which one is kept.
  // The exponent is 112 too low then; setting the bits of 96, which are always clear, makes it 16 too
  // low.
  const __m512i shifted = _mm512_mulhrs_epi16(a, _mm512_set1_epi16(1 << 12));
  return _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi16(int16_t(0x8fff)),
                                   _mm512_set1_epi16(0x3000), 0xea);
}

}  // namespace tidemill::TIDEMILL_AVX512
