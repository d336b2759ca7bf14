#include "text/index.h"

#include <cstring>
#include <random>

namespace tidemill::text {
namespace {

constexpr uint64_t kFirst = 0xa0761d6478bd642full, kSecond = 0xe7037ed1a0b428dbull;

// Both halves of a product of 64 by 64 bits, together (Wang Yi's wyhash).
uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t seed() {
  static const uint64_t drawn = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return drawn;
}

}  // namespace

uint64_t hash_text(std::string_view text) {
  uint64_t hash = seed() ^ mix(text.size() ^ kFirst, kSecond);
  size_t at = 0;
  for (; text.size() - at >= 8; at += 8) {
    uint64_t chunk;
    std::memcpy(&chunk, text.data() + at, 8);
    hash = mix(hash ^ chunk, kFirst);
  }
  uint64_t rest = 0;
  if (at < text.size()) std::memcpy(&rest, text.data() + at, text.size() - at);
  return mix(hash ^ rest, kSecond ^ seed());
}

uint64_t hash_pair(uint32_t first, uint32_t second) {
  return mix((uint64_t{first} << 32 | second) ^ seed(), kFirst);
}

}  // namespace tidemill::text
