#include "text/encoder.h"

#include <string>
#include <utility>

namespace tidemill::text {
namespace {

// Steps of matching for a whole text: real rules take 10 to 20 a byte.
constexpr uint64_t kSteps = 10'000'000, kStepsPerByte = 256;

bool prints(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The character that stands for a byte in byte-level vocabularies (GPT-2's alphabet): bytes that
// print as themselves, others from U+0100 on in their order.
uint32_t letter_of(uint8_t byte) {
  if (prints(byte)) return byte;
  uint32_t before = 0;
  for (uint32_t other = 0; other < byte; ++other) before += !prints(other);
  return 0x100 + before;
}

}  // namespace

struct Encoder::Work {
  std::vector<uint32_t> ids, symbols;
  std::string spelling;
  Pattern::Scratch scratch;
};

Encoder::Encoder(Vocabulary vocabulary, Merges merges, bool whole_words)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), whole_words_(whole_words) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t letter = letter_of(static_cast<uint8_t>(byte));
    std::array<char, 2>& spelling = spellings_[byte];
    if (letter < 0x80) {
      spelling = {static_cast<char>(letter), 0};
    } else {
      spelling = {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3F))};
    }
    bytes_[byte] = vocabulary_.find({spelling.data(), spelling[1] == 0 ? 1u : 2u});
  }
}

void Encoder::set_marks(std::vector<Mark> early, std::vector<Mark> late) {
  early_ = Marks(std::move(early));
  late_ = Marks(std::move(late));
}

template <typename OnText, typename OnMark>
void Encoder::each_part(const Marks& marks, std::string_view text, bool literally, OnText on_text,
                        OnMark on_mark) {
  size_t begin = 0, at = 0;
  for (;;) {
    const Marks::Found found = marks.next(text, at);
    at = found.end;
    if (found.mark != nullptr && literally && found.mark->special) continue;
    if (found.begin > begin) on_text(text.substr(begin, found.begin - begin));
    if (found.mark == nullptr) return;
    on_mark(found.mark->id);
    begin = found.end;
  }
}

std::vector<uint32_t> Encoder::encode(std::string_view text, bool literally, Stage stage) const {
  Work work;
  work.scratch.budget = kSteps + kStepsPerByte * text.size();
  work.ids.reserve(text.size() / 3 + 8);
  encode_stage(stage, text, literally, work);
  return std::move(work.ids);
}

void Encoder::encode_stage(Stage stage, std::string_view text, bool literally, Work& work) const {
  if (stage == Stage::Words) return cut(0, text, work);
  const Stage next = stage == Stage::Early ? Stage::Late : Stage::Words;
  each_part(
      stage == Stage::Early ? early_ : late_, text, literally,
      [&](std::string_view part) { encode_stage(next, part, literally, work); },
      [&](uint32_t id) { work.ids.push_back(id); });
}

std::vector<Encoder::Part> Encoder::split(std::string_view text, bool literally) const {
  std::vector<Part> parts;
  each_part(
      early_, text, literally, [&](std::string_view part) { parts.push_back({part, kNone}); },
      [&](uint32_t id) { parts.push_back({{}, id}); });
  return parts;
}

void Encoder::cut(size_t rule, std::string_view text, Work& work) const {
  if (rule == cuts_.size()) return merge(text, work);
  const Cut& by = cuts_[rule];
  size_t begin = 0, at = 0;  // of the gap before the next match
  while (at < text.size()) {
    const size_t end = by.pattern.match(text, at, work.scratch);
    if (end == std::string_view::npos) {
      at += character_at(text, at).size;
      continue;
    }
    if (by.gaps && at > begin) cut(rule + 1, text.substr(begin, at - begin), work);
    cut(rule + 1, text.substr(at, end - at), work);
    begin = at = end;
  }
  if (by.gaps && at > begin) cut(rule + 1, text.substr(begin), work);
}

void Encoder::merge(std::string_view word, Work& work) const {
  if (whole_words_) {
    work.spelling.clear();
    for (const char c : word) {
      const std::array<char, 2>& letter = spellings_[static_cast<uint8_t>(c)];
      work.spelling.append(letter.data(), letter[1] == 0 ? 1 : 2);
    }
    const uint32_t whole = vocabulary_.find(work.spelling);
    if (whole != kNone) return work.ids.push_back(whole);
  }
  work.symbols.clear();
  for (const char c : word) {
    // As the reference does, a byte that the vocabulary cannot spell is left out.
    const uint32_t symbol = bytes_[static_cast<uint8_t>(c)];
    if (symbol != kNone) work.symbols.push_back(symbol);
  }
  merges_.apply(work.symbols);
  work.ids.insert(work.ids.end(), work.symbols.begin(), work.symbols.end());
}

}  // namespace tidemill::text
