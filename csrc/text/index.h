// Where items stand that are kept elsewhere, by hash.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tidemill::text {

constexpr uint32_t kNone = UINT32_MAX;

// Seeded anew in every process: no file can be made so that its items collide.
uint64_t hash_text(std::string_view text);
uint64_t hash_pair(uint32_t first, uint32_t second);

// Open addressing with linear probing. A byte of the hash beside each place tells most other items
// apart without looking at them, so that five in six places may be taken.
class Index {
 public:
  // Room for so many items.
  explicit Index(size_t most) : tags_(most + most / 5 + 1, 0), items_(tags_.size(), kNone) {}

  // The item of this hash that is the same, or kNone. `same` (item) -> bool.
  template <typename Same>
  uint32_t find(uint64_t hash, Same same) const {
    return items_[place_of(hash, same)];
  }

  // Puts an item in, in the place of one that is the same; returns that one, or kNone.
  template <typename Same>
  uint32_t put(uint64_t hash, uint32_t item, Same same) {
    const size_t place = place_of(hash, same);
    const uint32_t before = items_[place];
    tags_[place] = tag_of(hash);
    items_[place] = item;
    return before;
  }

 private:
  static uint8_t tag_of(uint64_t hash) { return static_cast<uint8_t>(hash | 1); }  // 0: empty

  template <typename Same>
  size_t place_of(uint64_t hash, Same same) const {
    const size_t count = tags_.size();
    auto place = static_cast<size_t>((static_cast<unsigned __int128>(hash) * count) >> 64);
    while (tags_[place] != 0 && (tags_[place] != tag_of(hash) || !same(items_[place]))) {
      place = place + 1 == count ? 0 : place + 1;
    }
    return place;
  }

  std::vector<uint8_t> tags_;
  std::vector<uint32_t> items_;
};

}  // namespace tidemill::text
