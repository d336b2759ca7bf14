#include "text/json.h"

#include <string>
#include <utility>

#include "text/characters.h"

namespace tidemill::text {
namespace {

constexpr int kDeepest = 100;  // values in values

// Reads a document from its beginning on. Every function says false where it is not as expected;
// what is read then is never used.
class Reader {
 public:
  explicit Reader(std::string_view document) : document_(document) {}

  size_t at() const { return at_; }
  bool at_end() {
    skip_blanks();
    return at_ == document_.size();
  }
  char peek() {
    skip_blanks();
    return at_ < document_.size() ? document_[at_] : '\0';
  }
  bool take(char expected) {
    if (peek() != expected || at_ == document_.size()) return false;
    ++at_;
    return true;
  }

  // A text; the view is valid until the next one is read into the same buffer.
  bool text(std::string& buffer, std::string_view& found) {
    if (!take('"')) return false;
    const size_t begin = at_;
    while (at_ < document_.size() && plain(document_[at_])) ++at_;
    if (at_ < document_.size() && document_[at_] == '"') {
      found = document_.substr(begin, at_++ - begin);
      return true;
    }
    buffer.assign(document_.substr(begin, at_ - begin));
    while (at_ < document_.size() && document_[at_] != '"') {
      if (document_[at_] == '\\') {
        if (!escape(buffer)) return false;
      } else if (plain(document_[at_])) {
        buffer.push_back(document_[at_++]);
      } else {
        return false;
      }
    }
    if (at_ == document_.size()) return false;
    ++at_;
    found = buffer;
    return true;
  }

  bool integer(uint32_t& value) {
    if (peek() < '0' || peek() > '9') return false;
    uint64_t sum = 0;
    const size_t begin = at_;
    for (; at_ < document_.size() && document_[at_] >= '0' && document_[at_] <= '9'; ++at_) {
      sum = sum * 10 + static_cast<uint64_t>(document_[at_] - '0');
      if (sum > INT32_MAX || (at_ > begin && document_[begin] == '0')) return false;
    }
    value = static_cast<uint32_t>(sum);
    return true;
  }

  // Whatever value comes next; only where it ends is looked at, not what a number or a word is.
  bool skip(int depth = 0) {
    if (depth > kDeepest) return false;
    std::string buffer;
    std::string_view ignored;
    switch (peek()) {
      case '"': return text(buffer, ignored);
      case '{':
        return each_entry([&](std::string_view) { return skip(depth + 1); });
      case '[':
        return each_item([&] { return skip(depth + 1); });
      default: break;
    }
    const size_t begin = at_;
    while (at_ < document_.size() && word(document_[at_])) ++at_;
    return at_ > begin;
  }

  // The entries of an object; `each` reads the value.
  template <typename Each>
  bool each_entry(Each each) {
    if (!take('{')) return false;
    if (take('}')) return true;
    std::string buffer;
    do {
      std::string_view key;
      if (!text(buffer, key) || !take(':') || !each(key)) return false;
    } while (take(','));
    return take('}');
  }

  // The items of a list; `each` reads one.
  template <typename Each>
  bool each_item(Each each) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      if (!each()) return false;
    } while (take(','));
    return take(']');
  }

 private:
  static bool plain(char c) { return c != '"' && c != '\\' && static_cast<uint8_t>(c) >= 0x20; }
  static bool word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' ||
           c == '.';
  }
  void skip_blanks() {
    while (at_ < document_.size() && (document_[at_] == ' ' || document_[at_] == '\n' ||
                                      document_[at_] == '\r' || document_[at_] == '\t')) {
      ++at_;
    }
  }

  bool escape(std::string& buffer) {
    if (document_.size() - at_ < 2) return false;
    const char kind = document_[at_ + 1];
    at_ += 2;
    static constexpr std::string_view kKinds = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const size_t known = kKinds.find(kind);
    if (known != std::string_view::npos) {
      buffer.push_back(kMeant[known]);
      return true;
    }
    uint32_t code = 0;
    if (kind != 'u' || !four_digits(code)) return false;
    if (code >= 0xDC00 && code < 0xE000) return false;
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
      uint32_t low = 0;
      if (document_.substr(at_, 2) != "\\u") return false;
      at_ += 2;
      if (!four_digits(low) || low < 0xDC00 || low >= 0xE000) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append(buffer, code);
    return true;
  }

  bool four_digits(uint32_t& code) {
    if (document_.size() - at_ < 4) return false;
    code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = document_[at_++];
      const char small = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        code = code * 16 + static_cast<uint32_t>(c - '0');
      } else if (small >= 'a' && small <= 'f') {
        code = code * 16 + static_cast<uint32_t>(small - 'a' + 10);
      } else {
        return false;
      }
    }
    return true;
  }

  static void append(std::string& buffer, uint32_t code) {
    const auto put = [&](uint32_t byte) { buffer.push_back(static_cast<char>(byte)); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
      put(0xC0 | code >> 6);
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3F));
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
      put(0x80 | (code >> 6 & 0x3F));
    }
    put(0x80 | (code & 0x3F));
  }

  std::string_view document_;
  size_t at_ = 0;
};

bool read_span(Reader& reader, std::optional<Span>& span) {
  reader.peek();
  const size_t begin = reader.at();
  if (span || !reader.skip()) return false;
  span = Span{begin, reader.at()};
  return true;
}

bool halves(std::string_view line, std::string_view& left, std::string_view& right) {
  const size_t cut = line.find(' ');
  if (cut == std::string_view::npos || line.find(' ', cut + 1) != std::string_view::npos) {
    return false;
  }
  left = line.substr(0, cut), right = line.substr(cut + 1);
  return true;
}

}  // namespace

std::optional<ModelSpans> find_model(std::string_view document) {
  Reader reader(document);
  std::optional<Span> vocabulary, merges;
  bool seen = false;
  const bool sound = reader.each_entry([&](std::string_view key) {
    if (key != "model") return reader.skip();
    return !std::exchange(seen, true) && reader.each_entry([&](std::string_view part) {
      if (part == "vocab") return read_span(reader, vocabulary);
      if (part == "merges") return read_span(reader, merges);
      return reader.skip();
    });
  });
  if (!sound || !reader.at_end() || !vocabulary || !merges) return std::nullopt;
  return ModelSpans{*vocabulary, *merges};
}

bool read_vocabulary(std::string_view object,
                     const std::function<bool(std::string_view, uint32_t)>& each) {
  Reader reader(object);
  return reader.each_entry([&](std::string_view key) {
    uint32_t id = 0;
    return is_utf8(key) && reader.integer(id) && each(key, id);
  });
}

bool read_merges(std::string_view list,
                 const std::function<bool(std::string_view, std::string_view)>& each) {
  Reader reader(list);
  std::string first, second;
  return reader.each_item([&] {
    std::string_view left, right;
    if (reader.peek() == '"') {
      return reader.text(first, left) && halves(std::string_view(left), left, right) &&
             each(left, right);
    }
    return reader.take('[') && reader.text(first, left) && reader.take(',') &&
           reader.text(second, right) && reader.take(']') && each(left, right);
  });
}

}  // namespace tidemill::text
