#include "text/characters.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace tidemill::text {
namespace {

// Runs of one category: the first code point, five bits up, and the category.
constexpr uint32_t kRuns[] = {
#include "text/categories.inl"
};
constexpr uint32_t kPlane = 0x10000;  // characters in daily use; they are looked up in a table

Category of_run(uint32_t code) {
  const auto after = std::upper_bound(std::begin(kRuns), std::end(kRuns), code << 5 | 31);
  return static_cast<Category>(*std::prev(after) & 31);
}

const std::array<Category, kPlane>& plane() {
  static const std::array<Category, kPlane> table = [] {
    std::array<Category, kPlane> filled{};
    for (size_t run = 0; run < std::size(kRuns); ++run) {
      const uint32_t begin = kRuns[run] >> 5;
      const uint32_t end = run + 1 < std::size(kRuns) ? kRuns[run + 1] >> 5 : kPlane;
      for (uint32_t code = begin; code < std::min(end, kPlane); ++code) {
        filled[code] = static_cast<Category>(kRuns[run] & 31);
      }
    }
    return filled;
  }();
  return table;
}

}  // namespace

Category category(uint32_t code) {
  if (code < kPlane) return plane()[code];
  return code <= kLastCode ? of_run(code) : Category::Cn;
}

bool is_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_utf8(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const auto first = static_cast<uint8_t>(bytes[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || bytes.size() - at < size) return false;
    for (size_t i = 1; i < size; ++i) {
      if ((static_cast<uint8_t>(bytes[at + i]) & 0xC0) != 0x80) return false;
    }
    const uint32_t code = character_at(bytes, at).code;
    if (size == 3 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) return false;
    if (size == 4 && (code < 0x10000 || code > kLastCode)) return false;
    at += size;
  }
  return true;
}

}  // namespace tidemill::text
