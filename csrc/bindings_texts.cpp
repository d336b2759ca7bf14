// The Python module _texts: bulk operations on the texts of a vocabulary, and byte-level BPE. A
// separate module, so that a process that only needs a vocabulary does not load the core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "text/characters.h"
#include "text/encoder.h"
#include "text/json.h"
#include "text/repeats.h"

namespace nb = nanobind;
namespace text = tidemill::text;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ends = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableEnds = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr uint64_t kLength = 8;  // bytes of the little-endian length before a text

// Wraps a new reference for nanobind; throws the pending Python error if it is null.
nb::object owned(PyObject* object) {
  if (object == nullptr) nb::raise_python_error();
  return nb::steal(object);
}

// Calls `each` with the end offset of each of `count` texts; false if one exceeds the data.
template <typename Each>
bool each_end(const Bytes& data, uint64_t start, uint64_t count, Each each) {
  const uint64_t size = data.size();
  uint64_t position = start;
  for (uint64_t i = 0; i < count; ++i) {
    if (position > size || size - position < kLength) return false;
    uint64_t length = 0;
    for (uint64_t b = 0; b < kLength; ++b) {
      length |= uint64_t{data.data()[position + b]} << (8 * b);
    }
    position += kLength;
    if (size - position < length) return false;
    position += length;
    each(i, position);
  }
  return true;
}

// Fills `ends` with the end offset of each text; false if one exceeds the data.
bool find_ends(const Bytes& data, uint64_t start, const WritableEnds& ends) {
  return each_end(data, start, ends.size(),
                  [&](uint64_t i, uint64_t end) { ends.data()[i] = end; });
}

// The end offset of `count` texts; none if one exceeds the data.
nb::object skip(const Bytes& data, uint64_t start, uint64_t count) {
  uint64_t last = start;
  const bool inside = each_end(data, start, count, [&](uint64_t, uint64_t end) { last = end; });
  return inside ? nb::cast(last) : nb::none();
}

// Calls `each` with the texts that `find_ends` found and their indices until it returns false; returns
// whether it never did.
template <typename Each>
bool each_text(const Bytes& data, uint64_t start, const Ends& ends, Each each) {
  uint64_t begin = start;
  for (size_t i = 0; i < ends.size(); ++i) {
    const uint64_t end = ends.data()[i];
    if (end > data.size() || end < kLength || begin > end - kLength) {
      throw nb::index_error("ends of other data");
    }
    begin += kLength;
    const std::string_view text(reinterpret_cast<const char*>(data.data() + begin), end - begin);
    if (!each(text, static_cast<uint32_t>(i))) return false;
    begin = end;
  }
  return true;
}

// A text as a Python string. Raises UnicodeDecodeError.
nb::object str_of(std::string_view text) {
  return owned(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
}

// The texts that `find_ends` found. Raises UnicodeDecodeError.
nb::list decode(const Bytes& data, uint64_t start, const Ends& ends) {
  nb::list texts = nb::borrow<nb::list>(owned(PyList_New(static_cast<Py_ssize_t>(ends.size()))));
  each_text(data, start, ends, [&](std::string_view text, uint32_t i) {
    PyList_SetItem(texts.ptr(), static_cast<Py_ssize_t>(i), str_of(text).release().ptr());
    return true;
  });
  return texts;
}

// The text of a key: `texts[keys[key]]`, borrowed; null if the key is unknown.
PyObject* known(PyObject* key, PyObject* keys, PyObject* texts) {
  PyObject* index = PyDict_GetItemWithError(keys, key);
  if (index == nullptr) {
    if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    return nullptr;
  }
  const Py_ssize_t place = PyLong_AsSsize_t(index);
  if (place == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  PyObject* text = PyList_GetItem(texts, place);  // checks the place
  if (text == nullptr) nb::raise_python_error();
  return text;
}

// Splits each line "left right" into both halves. Stops at the first line whose halves, or their
// concatenation, are not keys, or that has no blank after its first character, and returns its index.
// Halves are existing objects and lines are released one by one: half a million new strings would take
// 30 MiB temporarily.
nb::object merges(nb::list lines, nb::dict keys, nb::list texts) {
  const Py_ssize_t count = PyList_Size(lines.ptr());
  nb::list found = nb::borrow<nb::list>(owned(PyList_New(count)));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const nb::object line = nb::borrow(PyList_GetItem(lines.ptr(), i));
    PyList_SetItem(lines.ptr(), i, nb::none().release().ptr());
    const Py_ssize_t length = PyUnicode_GetLength(line.ptr());
    if (length < 0) nb::raise_python_error();
    const Py_ssize_t cut = PyUnicode_FindChar(line.ptr(), ' ', 1, length, 1);
    if (cut == -1) return nb::cast(i);
    if (cut < 0) nb::raise_python_error();
    const nb::object left = owned(PyUnicode_Substring(line.ptr(), 0, cut));
    const nb::object right = owned(PyUnicode_Substring(line.ptr(), cut + 1, length));
    const nb::object whole = owned(PyUnicode_Concat(left.ptr(), right.ptr()));
    PyObject* first = known(left.ptr(), keys.ptr(), texts.ptr());
    PyObject* second = known(right.ptr(), keys.ptr(), texts.ptr());
    if (first == nullptr || second == nullptr ||
        known(whole.ptr(), keys.ptr(), texts.ptr()) == nullptr) {
      return nb::cast(i);
    }
    PyObject* pair = PyTuple_Pack(2, first, second);
    if (pair == nullptr) nb::raise_python_error();
    PyList_SetItem(found.ptr(), i, pair);
  }
  return found;
}

using Packed = std::tuple<Bytes, uint64_t, Ends>;  // data, start, ends

std::string_view view_of(const Bytes& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// Reads the merges of a vocabulary one by one: ids of both parts and of the result.
class MergeReader {
 public:
  MergeReader(const text::Vocabulary& vocabulary, size_t most)
      : vocabulary_(vocabulary), merges_(most) {}

  bool add(std::string_view left, std::string_view right) {
    whole_.assign(left).append(right);
    const uint32_t first = vocabulary_.find(left), second = vocabulary_.find(right);
    const uint32_t whole = vocabulary_.find(whole_);
    if (first == text::kNone || second == text::kNone || whole == text::kNone) return false;
    merges_.add(first, second, whole);
    ++count_;
    return true;
  }
  uint32_t count() const { return count_; }
  text::Merges take() { return std::move(merges_); }

 private:
  const text::Vocabulary& vocabulary_;
  text::Merges merges_;
  std::string whole_;
  uint32_t count_ = 0;
};

nb::object encoder_of_texts(const Packed& tokens, const Packed& lines, bool whole_words) {
  const auto& [data, start, ends] = tokens;
  const size_t count = ends.size();
  const uint64_t bytes = count == 0 ? 0 : ends.data()[count - 1] - start;
  text::Vocabulary vocabulary(count, std::min<uint64_t>(bytes, data.size()));
  const bool sound = each_text(data, start, ends, [&](std::string_view text, uint32_t id) {
    return text::is_utf8(text) && vocabulary.add(text, id);
  });
  if (!sound) return nb::none();
  const auto& [line_data, line_start, line_ends] = lines;
  MergeReader reader(vocabulary, line_ends.size());
  bool known = true;
  const bool all = each_text(line_data, line_start, line_ends, [&](std::string_view line, uint32_t) {
    if (!text::is_utf8(line)) return false;
    const size_t first = line.empty() ? 0 : text::character_at(line, 0).size;
    const size_t cut = line.find(' ', first);
    known = cut != std::string_view::npos && reader.add(line.substr(0, cut), line.substr(cut + 1));
    return known;
  });
  if (!all) return known ? nb::none() : nb::cast(reader.count());
  text::Merges merges = reader.take();
  return nb::cast(text::Encoder(std::move(vocabulary), std::move(merges), whole_words));
}

// The encoder of a tokenizer.json's model, or none where it is not sound. No Python: other threads run.
std::optional<text::Encoder> read_encoder(std::string_view document, const text::ModelSpans& spans,
                                          bool whole_words) {
  const auto part = [&](const text::Span& span) {
    return document.substr(span.begin, span.end - span.begin);
  };
  uint32_t last = 0;
  size_t count = 0, bytes = 0;
  bool sound = text::read_vocabulary(part(spans.vocabulary), [&](std::string_view text, uint32_t id) {
    last = std::max(last, id), ++count, bytes += text.size();
    return true;
  });
  if (!sound || last >= 2 * count + 1024) return std::nullopt;
  text::Vocabulary vocabulary(size_t{last} + 1, bytes);
  sound = text::read_vocabulary(part(spans.vocabulary), [&](std::string_view text, uint32_t id) {
    return vocabulary.add(text, id);
  });
  size_t lines = 0;
  sound = sound && text::read_merges(part(spans.merges), [&](std::string_view, std::string_view) {
            return ++lines < text::kNone;
          });
  if (!sound) return std::nullopt;
  MergeReader reader(vocabulary, lines);
  sound = text::read_merges(part(spans.merges), [&](std::string_view left, std::string_view right) {
    return reader.add(left, right);
  });
  if (!sound) return std::nullopt;
  text::Merges merges = reader.take();
  return text::Encoder(std::move(vocabulary), std::move(merges), whole_words);
}

nb::object encoder_of_json(const Bytes& data, const text::ModelSpans& spans, bool whole_words) {
  const std::string_view document = view_of(data);
  std::optional<text::Encoder> encoder;
  {
    nb::gil_scoped_release other_threads_run;
    encoder = read_encoder(document, spans, whole_words);
  }
  if (!encoder) return nb::none();
  return nb::cast(std::move(*encoder));
}

nb::object find_model(const Bytes& data) {
  const std::string_view document = view_of(data);
  std::optional<text::ModelSpans> spans;
  {
    nb::gil_scoped_release other_threads_run;
    spans = text::find_model(document);
  }
  if (!spans) return nb::none();
  return nb::cast(std::tuple(spans->vocabulary.begin, spans->vocabulary.end, spans->merges.begin,
                             spans->merges.end));
}

std::string_view utf8_of(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) nb::raise_python_error();
  return {bytes, static_cast<size_t>(size)};
}

// `normalized`: early marks have already been found.
nb::list encode(const text::Encoder& encoder, nb::str text, bool literally, bool normalized) {
  const std::string_view bytes = utf8_of(text);
  const auto stage = normalized ? text::Encoder::Stage::Late : text::Encoder::Stage::Early;
  std::vector<uint32_t> ids;
  {
    nb::gil_scoped_release other_threads_run;
    ids = encoder.encode(bytes, literally, stage);
  }
  nb::list found = nb::borrow<nb::list>(owned(PyList_New(static_cast<Py_ssize_t>(ids.size()))));
  for (size_t i = 0; i < ids.size(); ++i) {
    PyObject* id = PyLong_FromUnsignedLong(ids[i]);
    if (id == nullptr) nb::raise_python_error();
    PyList_SetItem(found.ptr(), static_cast<Py_ssize_t>(i), id);
  }
  return found;
}

nb::list split(const text::Encoder& encoder, nb::str text, bool literally) {
  nb::list parts;
  for (const auto& [part, id] : encoder.split(utf8_of(text), literally)) {
    parts.append(part.empty() ? nb::cast(id) : str_of(part));
  }
  return parts;
}

bool set_cuts(text::Encoder& encoder, const std::vector<std::pair<std::string, bool>>& rules) {
  std::vector<text::Cut> cuts;
  for (const auto& [expression, gaps] : rules) {
    std::optional<text::Pattern> pattern = text::Pattern::compile(expression);
    if (!pattern) return false;
    cuts.push_back({std::move(*pattern), gaps});
  }
  encoder.set_cuts(std::move(cuts));
  return true;
}

using NamedMark = std::tuple<std::string, uint32_t, bool>;  // text, id, special

std::vector<text::Mark> marks_of(const std::vector<NamedMark>& named) {
  std::vector<text::Mark> marks;
  for (const auto& [text, id, special] : named) {
    if (text.empty()) throw nb::value_error("a mark without text");
    marks.push_back({text, id, special});
  }
  return marks;
}

nb::object text_of(const text::Encoder& encoder, uint32_t id) {
  const std::string_view text = encoder.vocabulary().text(id);
  if (text.data() == nullptr) return nb::none();
  return str_of(text);
}

nb::object id_of(const text::Encoder& encoder, std::string_view text) {
  const uint32_t id = encoder.vocabulary().find(text);
  return id == text::kNone ? nb::none() : nb::cast(id);
}

}  // namespace

NB_MODULE(_texts, module) {
  // Objects that still hold a vocabulary at exit (llguidance does) must not make nanobind print a leak
  // report.
  nb::set_leak_warnings(false);
  module.def("find_ends", &find_ends, "data"_a, "start"_a, "ends"_a);
  module.def("skip", &skip, "data"_a, "start"_a, "count"_a);
  module.def("decode", &decode, "data"_a, "start"_a, "ends"_a);
  module.def("merges", &merges, "lines"_a, "keys"_a, "texts"_a);
  module.def("find_model", &find_model, "data"_a);
  nb::class_<text::Encoder>(module, "Encoder")
      .def_static("of_texts", &encoder_of_texts, "tokens"_a, "merges"_a, "whole_words"_a)
      .def_static(
          "of_json",
          [](const Bytes& data, size_t vocabulary, size_t vocabulary_end, size_t merges,
             size_t merges_end, bool whole_words) {
            return encoder_of_json(
                data, {{vocabulary, vocabulary_end}, {merges, merges_end}}, whole_words);
          },
          "data"_a, "vocabulary"_a, "vocabulary_end"_a, "merges"_a, "merges_end"_a,
          "whole_words"_a)
      .def("set_cuts", &set_cuts, "rules"_a)
      .def("set_marks",
           [](text::Encoder& encoder, const std::vector<NamedMark>& early,
              const std::vector<NamedMark>& late) {
             encoder.set_marks(marks_of(early), marks_of(late));
           },
           "early"_a, "late"_a)
      .def("encode", &encode, "text"_a, "literally"_a, "normalized"_a = false)
      .def("split", &split, "text"_a, "literally"_a)
      .def("token_to_id",
           [](const text::Encoder& encoder, const std::string& text) {
             return id_of(encoder, text);
           },
           "text"_a)
      .def("id_to_token", &text_of, "id"_a)
      .def("__len__", [](const text::Encoder& encoder) { return encoder.vocabulary().size(); });
  nb::class_<text::RepeatIndex>(module, "RepeatIndex")
      .def(nb::init<int64_t>(), "most"_a)
      .def("extend",
           [](text::RepeatIndex& index, const Tokens& tokens) {
             nb::gil_scoped_release release;
             index.extend(tokens.data(), static_cast<int64_t>(tokens.size()));
           },
           "tokens"_a)
      .def("separate", &text::RepeatIndex::separate)
      .def("propose", &text::RepeatIndex::propose, "count"_a)
      .def_prop_ro("match", &text::RepeatIndex::match)
      .def_prop_ro("nbytes", &text::RepeatIndex::bytes)
      .def("__len__", &text::RepeatIndex::tokens);
}
