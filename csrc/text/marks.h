// Tokens that are found in the text before it is cut into words: special and added ones.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill::text {

struct Mark {
  std::string text;  // not empty
  uint32_t id;
  bool special;
};

class Marks {
 public:
  explicit Marks(std::vector<Mark> marks);

  struct Found {
    size_t begin, end;
    const Mark* mark;  // null: none any more
  };
  // The leftmost mark from `at` on, of several there the longest.
  Found next(std::string_view text, size_t at) const;

 private:
  const Mark* longest(std::string_view text) const;

  std::vector<Mark> marks_;  // by text
  std::array<bool, 256> firsts_{};
};

}  // namespace tidemill::text
