// Regular expressions of word rules: the part of the Oniguruma syntax that tokenizers use to cut
// text into words, matched by backtracking as that library does, so that words are the same.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/characters.h"

namespace tidemill::text {

// A set of characters.
class CharacterSet {
 public:
  void add_range(uint32_t first, uint32_t last) { ranges_.emplace_back(first, last); }
  void add_categories(uint32_t mask) { categories_ |= mask; }  // a bit for each Category
  void add_space(bool inverted) { (inverted ? others_ : spaces_) = true; }
  void invert() { inverted_ = !inverted_; }
  void finish();  // after the last change

  bool contains(uint32_t code) const {
    return code < ascii_.size() ? ascii_[code] : contains_any(code);
  }

 private:
  bool contains_any(uint32_t code) const;

  std::array<bool, 128> ascii_{};
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
  uint32_t categories_ = 0;
  bool spaces_ = false, others_ = false, inverted_ = false;
};

// A compiled expression. Characters, classes, categories (\p{L}), \s, \d and their opposites,
// alternatives, groups, greedy and possessive repetition, looking ahead, and ASCII contractions
// whatever their case; what else there is, and what can match nothing, is not compiled.
class Pattern {
 public:
  // Nothing if the expression is beyond what is said above.
  static std::optional<Pattern> compile(std::string_view expression);

  // Where to go on when what was tried fails: a run gives back a character at a time down to `low`.
  struct Retreat {
    uint32_t step;
    size_t at, low;
  };
  // What matching needs beside the text; one serves many matches.
  struct Scratch {
    std::vector<Retreat> retreats;
    uint64_t budget;  // steps left
  };

  // Where the match ends that begins at `at`; npos without one.
  // Throws std::runtime_error when the budget is used up.
  size_t match(std::string_view text, size_t at, Scratch& scratch) const {
    return run(text, at, 0, scratch);
  }

 private:
  friend class PatternCompiler;
  static constexpr uint32_t kUnbounded = UINT32_MAX;

  enum class Op : uint8_t {
    One,    // a character of `set`
    Run,    // `least` to `most` characters of `set`, as many as there are
    Fork,   // go on at `next`; if that fails, at `other`
    Jump,   // go on at `next`
    Ahead,  // what follows matches up to its End, or with `least` 1 does not; go on at `next`
    End,
  };
  struct Step {
    Op op;
    bool possessive = false;
    uint32_t set = 0;
    uint32_t least = 0, most = 0;
    uint32_t next = 0, other = 0;
  };

  size_t run(std::string_view text, size_t at, uint32_t step, Scratch& scratch) const;

  std::vector<CharacterSet> sets_;
  std::vector<Step> steps_;
};

}  // namespace tidemill::text
