// Byte pair encoding: which neighbours are joined, and in what order (Sennrich et al. 2016).
#pragma once
#include <cstdint>
#include <vector>

#include "text/index.h"

namespace tidemill::text {

class Merges {
 public:
  // Room for so many.
  explicit Merges(size_t most) : index_(most) { pairs_.reserve(most); }

  // The pair becomes `whole`; earlier ones go first. One that is there already goes last from now on.
  void add(uint32_t left, uint32_t right, uint32_t whole);

  // Joins neighbours until none can be: always the pair that goes first, of equals the leftmost.
  // `symbols` [size] is shortened.
  void apply(std::vector<uint32_t>& symbols) const;

 private:
  struct Pair {
    uint32_t left, right, whole;
  };

  // The rank of a pair, lower ones first, or kNone.
  uint32_t rank(uint32_t left, uint32_t right) const {
    return index_.find(hash_pair(left, right), [&](uint32_t other) {
      return pairs_[other].left == left && pairs_[other].right == right;
    });
  }
  void apply_to_few(std::vector<uint32_t>& symbols) const;
  void apply_to_many(std::vector<uint32_t>& symbols) const;

  std::vector<Pair> pairs_;  // by rank
  Index index_;              // of ranks
};

}  // namespace tidemill::text
