#include "text/vocabulary.h"

namespace tidemill::text {

Vocabulary::Vocabulary(size_t ids, size_t bytes)
    : begins_(ids, 0), lengths_(ids, kNoText), index_(ids) {
  bytes_.reserve(bytes);
}

bool Vocabulary::add(std::string_view text, uint32_t id) {
  if (id >= lengths_.size() || lengths_[id] != kNoText || text.size() >= kNoText) return false;
  if (bytes_.size() + text.size() > bytes_.capacity() || bytes_.capacity() >= kNone) return false;
  begins_[id] = static_cast<uint32_t>(bytes_.size());
  bytes_.append(text);
  lengths_[id] = static_cast<uint16_t>(text.size());
  const uint32_t before = index_.put(
      hash_text(text), id, [&](uint32_t other) { return this->text(other) == text; });
  if (before != kNone) {
    lengths_[before] = kNoText;
  } else {
    ++count_;
  }
  return true;
}

uint32_t Vocabulary::find(std::string_view text) const {
  return index_.find(hash_text(text), [&](uint32_t id) { return this->text(id) == text; });
}

std::string_view Vocabulary::text(uint32_t id) const {
  if (id >= lengths_.size() || lengths_[id] == kNoText) return {};
  return std::string_view(bytes_).substr(begins_[id], lengths_[id]);
}

}  // namespace tidemill::text
