// The texts of a vocabulary by id, and ids by text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill::text {

constexpr uint32_t kNone = UINT32_MAX;

// A seed of this process's own: no file can be made so that its texts collide.
uint64_t hash_seed();
uint64_t hash_text(std::string_view text);
uint64_t hash_pair(uint32_t first, uint32_t second);

// The place of a hash among `count` places.
inline size_t place_of(uint64_t hash, size_t count) {
  return static_cast<size_t>((static_cast<unsigned __int128>(hash) * count) >> 64);
}

class Vocabulary {
 public:
  // Room for ids below `ids` and texts of so many bytes together.
  Vocabulary(size_t ids, size_t bytes);

  // A text that is known already moves to the new id. False where the id is out of range or taken,
  // or there are more bytes than were said.
  bool add(std::string_view text, uint32_t id);

  uint32_t find(std::string_view text) const;  // its id, or kNone
  // The text of an id; an empty view of a null pointer for an id without one.
  std::string_view text(uint32_t id) const;
  size_t size() const { return count_; }  // texts
  size_t ids() const { return begins_.size(); }

 private:
  struct Slot {
    uint32_t tag;  // of the hash
    uint32_t id;   // kNone: empty
  };

  size_t slot_of(std::string_view text, uint64_t hash) const;

  std::string bytes_;
  std::vector<uint32_t> begins_, ends_;  // by id; kNone: no text
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace tidemill::text
