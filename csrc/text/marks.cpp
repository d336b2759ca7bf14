#include "text/marks.h"

#include <algorithm>

namespace tidemill::text {

Marks::Marks(std::vector<Mark> marks) : marks_(std::move(marks)) {
  std::sort(marks_.begin(), marks_.end(),
            [](const Mark& a, const Mark& b) { return a.text < b.text; });
  for (const Mark& mark : marks_) firsts_[static_cast<uint8_t>(mark.text[0])] = true;
}

Marks::Found Marks::next(std::string_view text, size_t at) const {
  if (marks_.empty()) return {text.size(), text.size(), nullptr};
  for (; at < text.size(); ++at) {
    if (!firsts_[static_cast<uint8_t>(text[at])]) continue;
    const Mark* mark = longest(text.substr(at));
    if (mark != nullptr) return {at, at + mark->text.size(), mark};
  }
  return {text.size(), text.size(), nullptr};
}

// Those that agree with the text so far are neighbours; the first of them is the shortest.
const Mark* Marks::longest(std::string_view text) const {
  const Mark* found = nullptr;
  auto first = marks_.begin(), last = marks_.end();
  for (size_t depth = 0; depth < text.size() && first != last; ++depth) {
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto at_depth = [depth](const Mark& mark) {
      return static_cast<int>(static_cast<uint8_t>(mark.text[depth]));
    };
    // None here is shorter than `depth`, and one that ends here was taken away below.
    first = std::partition_point(first, last, [&](const Mark& m) { return at_depth(m) < byte; });
    last = std::partition_point(first, last, [&](const Mark& m) { return at_depth(m) <= byte; });
    if (first != last && first->text.size() == depth + 1) found = &*first++;
  }
  return found;
}

}  // namespace tidemill::text
