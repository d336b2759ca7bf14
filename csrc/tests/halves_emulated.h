// simd/halves.h in plain C++, lane by lane, to check it on machines without AVX512-FP16. Needs the
// vectors of simd/avx512.h.
#pragma once

namespace tidemill::TIDEMILL_AVX512 {

struct Words {
  uint16_t at[32];
};
static inline Words words_out(Vi a) {
  Words words;
  istore(&words, a);
  return words;
}
template <class Lane>
static inline Vi words_made(Lane lane) {
  Words words;
  for (int i = 0; i < 32; ++i) words.at[i] = uint16_t(lane(i));
  return iload(&words);
}

static inline Vi words_of_bytes(const uint8_t* p) {
  return words_made([&](int i) { return int8_t(p[i]); });
}
static inline Vi words_set(int value) {
  return words_made([&](int) { return value; });
}
template <int kBits>
static inline Vi words_shift(Vi a) {
  const Words from = words_out(a);
  return words_made([&](int i) {
    return kBits < 0 ? from.at[i] << (kBits < 0 ? -kBits : 0) : from.at[i] >> (kBits < 0 ? 0 : kBits);
  });
}
static inline Vi words_look_up(Vi table, Vi index) {
  const Words values = words_out(table), at = words_out(index);
  return words_made([&](int i) { return values.at[at.at[i] & 31]; });
}
static inline Vi bits_select(Vi a, Vi b, Vi mask) {
  const Words first = words_out(a), second = words_out(b), wanted = words_out(mask);
  return words_made([&](int i) {
    return (first.at[i] & ~wanted.at[i]) | (second.at[i] & wanted.at[i]);
  });
}

static inline Vi halves_of_words(Vi a) {
  const Words from = words_out(a);
  return words_made([&](int i) { return float_to_half(float(int16_t(from.at[i]))); });
}
// The product of two halves is exact in a float. Adding a third one in double is exact except for bits
// 20 below the result's last.
static inline Vi halves_fma(Vi a, Vi b, Vi c) {
  const Words x = words_out(a), y = words_out(b), z = words_out(c);
  return words_made([&](int i) {
    const float product = half_to_float(x.at[i]) * half_to_float(y.at[i]);
    return float_to_half(float(double(product) + double(half_to_float(z.at[i]))));
  });
}
static inline Vi halves_mul(Vi a, Vi b) { return halves_fma(a, b, iset(0)); }
static inline Vi halves_to_bf16(Vi a) {
  const Words from = words_out(a);
  return words_made([&](int i) {
    const unsigned magnitude = from.at[i] & 0x7fffu;
    return (from.at[i] & 0x8000u) | (((magnitude + 4) >> 3 & 0xfffu) | 0x3000u);
  });
}

}  // namespace tidemill::TIDEMILL_AVX512
