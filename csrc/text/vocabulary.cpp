#include "text/vocabulary.h"

#include <cstring>
#include <random>

namespace tidemill::text {
namespace {

// Both halves of a product of 64 by 64 bits, together (Wang Yi's wyhash).
uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kFirst = 0xa0761d6478bd642full, kSecond = 0xe7037ed1a0b428dbull;

}  // namespace

uint64_t hash_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return seed;
}

uint64_t hash_text(std::string_view text) {
  uint64_t hash = hash_seed() ^ mix(text.size() ^ kFirst, kSecond);
  size_t at = 0;
  for (; text.size() - at >= 8; at += 8) {
    uint64_t chunk;
    std::memcpy(&chunk, text.data() + at, 8);
    hash = mix(hash ^ chunk, kFirst);
  }
  uint64_t rest = 0;
  if (at < text.size()) std::memcpy(&rest, text.data() + at, text.size() - at);
  return mix(hash ^ rest, kSecond ^ hash_seed());
}

uint64_t hash_pair(uint32_t first, uint32_t second) {
  return mix((uint64_t{first} << 32 | second) ^ hash_seed(), kFirst);
}

Vocabulary::Vocabulary(size_t ids, size_t bytes)
    : begins_(ids, kNone), ends_(ids, kNone), slots_(ids + ids / 4 + 1, Slot{0, kNone}) {
  bytes_.reserve(bytes);
}

size_t Vocabulary::slot_of(std::string_view text, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash);
  size_t place = place_of(hash, slots_.size());
  while (slots_[place].id != kNone &&
         (slots_[place].tag != tag || this->text(slots_[place].id) != text)) {
    place = place + 1 == slots_.size() ? 0 : place + 1;
  }
  return place;
}

bool Vocabulary::add(std::string_view text, uint32_t id) {
  if (id >= begins_.size() || begins_[id] != kNone) return false;
  if (bytes_.size() + text.size() > bytes_.capacity() || bytes_.capacity() >= kNone) return false;
  const uint64_t hash = hash_text(text);
  Slot& slot = slots_[slot_of(text, hash)];
  begins_[id] = static_cast<uint32_t>(bytes_.size());
  bytes_.append(text);
  ends_[id] = static_cast<uint32_t>(bytes_.size());
  if (slot.id != kNone) {
    begins_[slot.id] = ends_[slot.id] = kNone;
  } else {
    ++count_;
  }
  slot = {static_cast<uint32_t>(hash), id};
  return true;
}

uint32_t Vocabulary::find(std::string_view text) const {
  return slots_[slot_of(text, hash_text(text))].id;
}

std::string_view Vocabulary::text(uint32_t id) const {
  if (id >= begins_.size() || begins_[id] == kNone) return {};
  return std::string_view(bytes_).substr(begins_[id], ends_[id] - begins_[id]);
}

}  // namespace tidemill::text
