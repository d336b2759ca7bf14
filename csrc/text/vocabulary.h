// The texts of a vocabulary by id, and ids by text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/index.h"

namespace tidemill::text {

class Vocabulary {
 public:
  // Room for ids below `ids` and texts of so many bytes together.
  Vocabulary(size_t ids, size_t bytes);

  // A text that is known already moves to the new id. False where the id is out of range or taken,
  // the text has 65,535 bytes or more, or there are more bytes than were said.
  bool add(std::string_view text, uint32_t id);

  uint32_t find(std::string_view text) const;  // its id, or kNone
  // The text of an id; an empty view of a null pointer for an id without one.
  std::string_view text(uint32_t id) const;
  size_t size() const { return count_; }  // texts

 private:
  static constexpr uint16_t kNoText = UINT16_MAX;

  std::string bytes_;
  std::vector<uint32_t> begins_;   // by id
  std::vector<uint16_t> lengths_;  // by id
  Index index_;                    // of ids
  size_t count_ = 0;
};

}  // namespace tidemill::text
