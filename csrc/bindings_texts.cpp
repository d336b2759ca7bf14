// The Python module _texts: what a start does to each of the hundreds of thousands of texts of a
// vocabulary, where a loop of Python's would take a tenth of a second. A module of its own, so that
// a process that opens a vocabulary alone does not load the core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ends = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableEnds = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr uint64_t kLength = 8;  // bytes of a text's length before it, little endian

// A new reference as nanobind holds it; the error that Python has set where there is none.
nb::object owned(PyObject* object) {
  if (object == nullptr) nb::raise_python_error();
  return nb::steal(object);
}

// Fills `ends` with the byte behind each text; false when one leaves the data.
bool find_ends(const Bytes& data, uint64_t start, const WritableEnds& ends) {
  const uint64_t size = data.size();
  uint64_t position = start;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (position > size || size - position < kLength) return false;
    uint64_t length = 0;
    for (uint64_t b = 0; b < kLength; ++b) {
      length |= uint64_t{data.data()[position + b]} << (8 * b);
    }
    position += kLength;
    if (size - position < length) return false;
    position += length;
    ends.data()[i] = position;
  }
  return true;
}

// The texts that `find_ends` found. Raises UnicodeDecodeError.
nb::list decode(const Bytes& data, uint64_t start, const Ends& ends) {
  const auto count = static_cast<Py_ssize_t>(ends.size());
  nb::list texts = nb::borrow<nb::list>(owned(PyList_New(count)));
  uint64_t begin = start;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const uint64_t end = ends.data()[i];
    if (end > data.size() || end < kLength || begin > end - kLength) {
      throw nb::index_error("ends of other data");
    }
    begin += kLength;
    const auto* text = reinterpret_cast<const char*>(data.data() + begin);
    PyObject* decoded = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(end - begin), nullptr);
    if (decoded == nullptr) nb::raise_python_error();
    PyList_SetItem(texts.ptr(), i, decoded);
    begin = end;
  }
  return texts;
}

// The text that a key stands for: `texts[keys[key]]`, borrowed; null where it is no key.
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

// Both halves of each line "left right"; the place of the first line of which they or both together
// are no keys, or that has no blank behind its first character. Halves are the texts themselves and
// lines are let go one by one: half a million texts of their own would take 30 MiB for a moment.
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

}  // namespace

NB_MODULE(_texts, module) {
  module.def("find_ends", &find_ends, "data"_a, "start"_a, "ends"_a);
  module.def("decode", &decode, "data"_a, "start"_a, "ends"_a);
  module.def("merges", &merges, "lines"_a, "keys"_a, "texts"_a);
}
