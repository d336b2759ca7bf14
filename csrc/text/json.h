// The vocabulary inside a tokenizer.json, read where it stands: as objects of any kind its 300,000
// texts would take tens of megabytes.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace tidemill::text {

// A part of the document, in bytes.
struct Span {
  size_t begin, end;
};

// Where the values of model.vocab and model.merges stand; nothing where the document is no JSON
// object with just one of each.
struct ModelSpans {
  Span vocabulary, merges;
};
std::optional<ModelSpans> find_model(std::string_view document);

// Calls `each` for the entries of an object of integers; false where it is none, an integer is
// beyond 31 bits, a text is no UTF-8, or `each` says so.
bool read_vocabulary(std::string_view object,
                     const std::function<bool(std::string_view, uint32_t)>& each);

// Calls `each` for the entries of a list whose entries are all "left right" or ["left", "right"].
bool read_merges(std::string_view list,
                 const std::function<bool(std::string_view, std::string_view)>& each);

}  // namespace tidemill::text
