// Unicode characters of UTF-8 text, and what word rules ask about them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidemill::text {

// General categories (Unicode Standard, section 4.5), in the order of categories.inl.
enum class Category : uint8_t {
  Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe,
  Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co, Cn,
};
constexpr int kCategories = 30;
constexpr uint32_t kLastCode = 0x10FFFF;

// The category of any code point; those beyond the last one are unassigned.
Category category(uint32_t code);

// Unicode's White_Space.
bool is_space(uint32_t code);

struct Character {
  uint32_t code;
  uint32_t size;  // bytes
};

// The character that begins at `at` < text.size(). The text is valid UTF-8.
inline Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t first = byte(at);
  if (first < 0x80) return {first, 1};
  const auto more = [&](size_t i) { return byte(at + i) & 0x3F; };
  if (first < 0xE0) return {(first & 0x1F) << 6 | more(1), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | more(1) << 6 | more(2), 3};
  return {(first & 0x07) << 18 | more(1) << 12 | more(2) << 6 | more(3), 4};
}

// Where the character begins that ends before `at` > 0.
inline size_t before(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

// Whether bytes are UTF-8 as Unicode defines it: shortest forms, no surrogates.
bool is_utf8(std::string_view bytes);

}  // namespace tidemill::text
