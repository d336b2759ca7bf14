// Text to token ids by a byte-level BPE vocabulary: marks, words, merges.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/marks.h"
#include "text/merges.h"
#include "text/pattern.h"
#include "text/vocabulary.h"

namespace tidemill::text {

// How text is cut into words.
struct Cut {
  Pattern pattern;
  bool gaps;  // what stands between matches is a word too; else it is left out
};

class Encoder {
 public:
  // `early` marks are looked for first, `late` ones in what is left. `whole_words`: a word that is a
  // token is taken as it is, whatever the merges say.
  Encoder(Vocabulary vocabulary, Merges merges, bool whole_words);

  void set_cuts(std::vector<Cut> cuts) { cuts_ = std::move(cuts); }
  void set_marks(std::vector<Mark> early, std::vector<Mark> late);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // What is looked for next; the text between marks goes on to the next stage.
  enum class Stage { Early, Late, Words };

  // Ids of a text, which is UTF-8, from a stage on. `literally`: special marks are characters.
  // Throws std::runtime_error where a word rule finds too many ways to match.
  std::vector<uint32_t> encode(std::string_view text, bool literally, Stage stage) const;

  // A text between early marks, or the mark's id where the text is empty.
  struct Part {
    std::string_view text;
    uint32_t id;
  };
  std::vector<Part> split(std::string_view text, bool literally) const;

 private:
  struct Work;

  template <typename OnText, typename OnMark>
  static void each_part(const Marks& marks, std::string_view text, bool literally, OnText on_text,
                        OnMark on_mark);
  void encode_stage(Stage stage, std::string_view text, bool literally, Work& work) const;
  void cut(size_t rule, std::string_view text, Work& work) const;
  void merge(std::string_view word, Work& work) const;

  Vocabulary vocabulary_;
  Merges merges_;
  bool whole_words_;
  std::vector<Cut> cuts_;
  Marks early_{{}}, late_{{}};
  std::array<uint32_t, 256> bytes_;  // each byte's own token, or kNone
  std::array<std::array<char, 2>, 256> spellings_;
};

}  // namespace tidemill::text
