// Byte dot products without a dot product instruction: pairwise products, 16-bit sums, then 32-bit
// sums. Written in terms of names common to simd/avx2.h and simd/avx512.h, which include it.

constexpr bool kPairDots = true;
constexpr int64_t kPrefetchRowsQ8 = 2, kPrefetchRowsQ4 = 1, kPrefetchRowsK = 1;

// A product of bytes is |a| * q or, where a is negative, |a| * ~q = |a| * (-q - 1). Since -128 <= q <=
// 127 and |a| <= 127, a pair of products fits 16 bits; with q + 128 it would not. vpsignb would give
// -q, but it runs on the multiplication units (Zen 4), the bottleneck. `flip` turns the stored q + 128
// into q or ~q; kQ8Offset corrects the one missing in ~q.
#define TIDEMILL_INT8X4_Q8 1
struct Int8x4Q8 {
  Vi magnitude, flip;
};
static inline Int8x4Q8 act_int8x4_q8(const uint8_t* acts, int i) {
  return {ibroadcast(acts + 8 * i), ibroadcast(acts + 8 * i + 4)};
}
// Returns lanes whose sum is the initial value of the products' sums.
static inline Vi store_act_q8(const int8_t* q, uint8_t* to) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), a);
  const __m256i magnitude = _mm256_abs_epi8(a);
  const __m256i flip = _mm256_xor_si256(negative, _mm256_set1_epi8(int8_t(-128)));
  const __m256i low = _mm256_unpacklo_epi32(magnitude, flip);
  const __m256i high = _mm256_unpackhi_epi32(magnitude, flip);
  __m256i* out = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(low, high, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(low, high, 0x31));
  const __m256i below = _mm256_and_si256(magnitude, negative);
  return iwiden(_mm256_sad_epu8(below, _mm256_setzero_si256()));
}
static inline Vi dot_q8(Vi acc, Vi w, Int8x4Q8 a) {
  const Vi pairs = imadd_bytes(a.magnitude, ixor(w, a.flip));
  acc = iadd(acc, imadd_pairs(pairs, iset(0x00010001)));
  ikeep(acc);
  return acc;
}
static inline Vi dot_q4(Vi acc, Vi w, Vi a) {
  acc = iadd_pairs(acc, imadd_bytes(w, a));
  ikeep(acc);
  return acc;
}
static inline Vi dot_u6(Vi acc, Vi w, Vi a) { return dot_q4(acc, w, a); }
static inline Vi load_scales(const int8_t* p) {  // each twice in a lane
  alignas(16) static constexpr uint8_t kBoth[16] = {0, 1, 0, 1, 4, 5, 4, 5,
                                                    8, 9, 8, 9, 12, 13, 12, 13};
  return ilook_up(iload_s8(p), itable(kBoth));
}
static inline Vi add_scaled(Vi acc, Vi dots, Vi scales) {
  return iadd(acc, imadd_pairs(dots, scales));
}
static inline Vi ipair_sums(Vi dots) { return imadd_pairs(dots, iset(0x00010001)); }
// 16-bit sums wrap, but including the offset they fit at the end: 8 products of at most 32 * 127.
static inline int32_t dot_start_u6(const int8_t* q, int32_t) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  __m128i sums = _mm_maddubs_epi16(_mm_set1_epi8(32), bytes);
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4e));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xb1));
  return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), sums));
}
