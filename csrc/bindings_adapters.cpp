#include "bindings_adapters.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <optional>

#include "model/adapters.h"
#include "runtime/error.h"
#include "step/executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidemill {

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t size_of(const Vector& vector) { return static_cast<int64_t>(vector.size()); }

void require_shape(bool holds) {
  if (!holds) throw internal_error("an adapter's array does not have its matrix's shape");
}

LowRankValues values_of(const Matrix& a, const Matrix& b, float scale, const std::optional<Vector>& gain,
                        const std::optional<Vector>& input_gain) {
  const size_t rank = a.shape(0);
  require_shape(rank > 0 && b.shape(1) == rank && (!gain || gain->size() == b.shape(0)) &&
                (!input_gain || input_gain->size() == a.shape(1)));
  return {a.data(), b.data(), static_cast<int64_t>(rank), scale, gain ? gain->data() : nullptr,
          input_gain ? input_gain->data() : nullptr};
}

// `bias`: the base's, id of a vector or -1.
void change_product(Adapter& adapter, Executor& e, int id, int bias, const Matrix& a, const Matrix& b,
                    float scale, const std::optional<Vector>& gain, const std::optional<Vector>& input_gain) {
  const PackedMatrix& base = e.weights().matrix(id);
  const LowRankValues values = values_of(a, b, scale, gain, input_gain);
  require_shape(static_cast<int64_t>(b.shape(0)) == base.n && static_cast<int64_t>(a.shape(1)) == base.k);
  nb::gil_scoped_release release;
  if (input_gain) e.weights().packed().await(id + 1);  // the base's values are read
  adapter.change_product(id, base, bias < 0 ? nullptr : e.weights().vector(bias, base.n), values);
}

// `replaces`: the base's bias (id of a vector) whose place `values` takes; -1: they are added.
void shift_product(Adapter& adapter, Executor& e, int id, int replaces, const Vector& values) {
  const PackedMatrix& m = e.weights().matrix(id);
  require_shape(size_of(values) == m.n);
  adapter.shift_product(id, m.n, m.k, values.data());
  if (replaces < 0) return;
  const float* const base = e.weights().vector(replaces, m.n);
  std::vector<float> minus(base, base + m.n);
  for (float& value : minus) value = -value;
  adapter.shift_product(id, m.n, m.k, minus.data());
}

void replace_product(Adapter& adapter, Executor& e, int id, const Matrix& values) {
  const PackedMatrix& m = e.weights().matrix(id);
  require_shape(static_cast<int64_t>(values.shape(0)) == m.n && static_cast<int64_t>(values.shape(1)) == m.k);
  nb::gil_scoped_release release;
  adapter.replace_product(id, m.n, m.k, values.data());
}

void change_embedding(Adapter& adapter, const Matrix& a, const Matrix& b, float scale,
                      const std::optional<Vector>& gain, const std::optional<Vector>& input_gain) {
  const LowRankValues values = values_of(a, b, scale, gain, input_gain);
  nb::gil_scoped_release release;
  adapter.change_embedding(static_cast<int64_t>(b.shape(0)), static_cast<int64_t>(a.shape(1)), values);
}

void replace_embedding(Adapter& adapter, const Matrix& values) {
  nb::gil_scoped_release release;
  adapter.replace_embedding(static_cast<int64_t>(values.shape(0)), static_cast<int64_t>(values.shape(1)),
                            values.data());
}

void replace_vector(Adapter& adapter, Executor& e, int id, const Vector& values) {
  adapter.replace_vector(e.weights().vector(id, size_of(values)), size_of(values), values.data());
}

}  // namespace

void bind_adapters(nb::module_& m) {
  nb::class_<Adapter>(m, "Adapter")
      .def("reserve", &Adapter::reserve)
      .def("change_product", &change_product, "executor"_a, "matrix"_a, "bias"_a, "a"_a, "b"_a, "scale"_a,
           "gain"_a.none(), "input_gain"_a.none())
      .def("shift_product", &shift_product)
      .def("replace_product", &replace_product)
      .def("change_embedding", &change_embedding, "a"_a, "b"_a, "scale"_a, "gain"_a.none(), "input_gain"_a.none())
      .def("replace_embedding", &replace_embedding)
      .def("replace_vector", &replace_vector)
      .def("bytes", &Adapter::bytes);
  m.def("adapter_product_bytes", &Adapter::product_bytes);
  m.def("adapter_embedding_bytes", &Adapter::embedding_bytes);
}

}  // namespace tidemill
