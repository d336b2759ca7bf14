// Byte pair encoding: which neighbours are joined, and in what order (Sennrich et al. 2016).
#pragma once
#include <cstdint>
#include <vector>

#include "text/vocabulary.h"

namespace tidemill::text {

class Merges {
 public:
  explicit Merges(size_t most) : slots_(most + most / 3 + 1, Slot{0, 0, kNone, 0}) {}

  // The pair becomes `whole`; a lower rank goes first. A later one of the same pair takes its place.
  // At most as many as were said.
  void set(uint32_t left, uint32_t right, uint32_t rank, uint32_t whole);

  // Joins neighbours until none can be: always the pair of lowest rank, of equals the leftmost.
  // `symbols` [size] is shortened.
  void apply(std::vector<uint32_t>& symbols) const;

 private:
  struct Slot {
    uint32_t left, right;
    uint32_t rank;  // kNone: empty
    uint32_t whole;
  };

  // The pair's slot, or the empty one where it would be.
  const Slot& find(uint32_t left, uint32_t right) const;
  void apply_to_few(std::vector<uint32_t>& symbols) const;
  void apply_to_many(std::vector<uint32_t>& symbols) const;

  std::vector<Slot> slots_;
};

}  // namespace tidemill::text
