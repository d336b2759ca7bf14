#include "bindings_step.h"

#include <nanobind/ndarray.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/error.h"

namespace nb = nanobind;

namespace tidemill {

namespace {

template <class T, size_t Dimensions>
using Array = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, uint64_t>) return "uint64";
  return "uint8";
}

template <class T, size_t Dimensions>
Array<T, Dimensions> array(nb::handle value, const char* field) {
  Array<T, Dimensions> result;
  if (!nb::try_cast(value, result, false)) {
    throw internal_error(std::string(field) + " must be a C-contiguous " + type_name<T>() +
                         " array of " + std::to_string(Dimensions) + " axes", field);
  }
  return result;
}

template <class T>
std::vector<T> read(nb::handle object, const char* field) {
  const nb::object value = object.attr(field);
  const auto a = array<T, 1>(value, field);
  return std::vector<T>(a.data(), a.data() + a.size());
}

Int32Table read_table(nb::handle value, const char* field) {
  const auto a = array<int32_t, 2>(value, field);
  return {static_cast<int64_t>(a.shape(0)), static_cast<int64_t>(a.shape(1)),
          std::vector<int32_t>(a.data(), a.data() + a.size())};
}

std::vector<Int32Table> read_tables(nb::handle object, const char* field) {
  std::vector<Int32Table> tables;
  const nb::object sequence = object.attr(field);
  for (nb::handle item : sequence) tables.push_back(read_table(item, field));
  return tables;
}

// A numpy array that owns the vector's memory.
template <class T>
nb::object to_numpy(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), shape, owner),
                  nb::rv_policy::reference);
}

nb::object to_tuple(Logprobs&& logprobs) {
  if (!logprobs.present) return nb::none();
  const size_t count = logprobs.chosen.size(), width = static_cast<size_t>(logprobs.width);
  return nb::make_tuple(to_numpy(std::move(logprobs.chosen), {count}),
                        to_numpy(std::move(logprobs.ids), {count, width}),
                        to_numpy(std::move(logprobs.values), {count, width}));
}

// backends/base.py's SamplerExtras; SAMPLER_OPTIONS is SamplerOptions in memory.
SamplerExtras read_extras(nb::handle x) {
  SamplerExtras extras;
  extras.row = read<int32_t>(x, "row");
  const nb::object records = x.attr("options");
  const auto bytes = array<uint8_t, 2>(records, "options");
  if (bytes.shape(1) != sizeof(SamplerOptions)) {
    throw internal_error("options: a record has " + std::to_string(bytes.shape(1)) + " bytes", "options");
  }
  extras.options.resize(bytes.shape(0));
  if (bytes.size() > 0) std::memcpy(extras.options.data(), bytes.data(), bytes.size());
  extras.breakers_start = read<int32_t>(x, "breakers_start");
  extras.breakers = read<int32_t>(x, "breakers");
  extras.bad_words_start = read<int32_t>(x, "bad_words_start");
  extras.bad_words = read<int32_t>(x, "bad_words");
  const nb::object masks = x.attr("allowed");
  const auto allowed = array<uint8_t, 2>(masks, "allowed");
  extras.allowed_bytes = static_cast<int64_t>(allowed.shape(1));
  extras.allowed.assign(allowed.data(), allowed.data() + allowed.size());
  return extras;
}

}  // namespace

SamplingInput read_sampling(nb::handle s) {
  SamplingInput in;
  in.temperature = read<float>(s, "temperature");
  in.top_p = read<float>(s, "top_p");
  in.min_p = read<float>(s, "min_p");
  in.presence = read<float>(s, "presence");
  in.frequency = read<float>(s, "frequency");
  in.repetition = read<float>(s, "repetition");
  in.top_k = read<int32_t>(s, "top_k");
  in.seed = read<uint64_t>(s, "seed");
  in.choice = read<int32_t>(s, "choice");
  in.position = read<int32_t>(s, "position");
  in.num_logprobs = read<int32_t>(s, "num_logprobs");
  in.bias_start = read<int32_t>(s, "bias_start");
  in.bias_id = read<int32_t>(s, "bias_id");
  in.bias_value = read<float>(s, "bias_value");
  in.history_start = read<int32_t>(s, "history_start");
  in.history = read<int32_t>(s, "history");
  in.history_prompt = read<int32_t>(s, "history_prompt");
  if (const nb::object extras = s.attr("extras"); !extras.is_none()) in.extras = read_extras(extras);
  if (const nb::object beams = nb::getattr(s, "candidates", nb::none()); !beams.is_none()) {
    in.candidates = read<int32_t>(s, "candidates");
  }
  return in;
}

StepInput read_step(nb::handle inputs) {
  StepInput step;
  step.step_id = nb::cast<int64_t>(inputs.attr("step_id"));
  step.token_ids = read<int32_t>(inputs, "token_ids");
  step.row_start = read<int32_t>(inputs, "row_start");
  step.context_len = read<int32_t>(inputs, "context_len");
  step.block_tables = read_tables(inputs, "block_tables");
  step.logits = read<uint8_t>(inputs, "logits");
  step.sample = read<uint8_t>(inputs, "sample");
  step.await_mask = read<uint8_t>(inputs, "await_mask");
  if (!nb::getattr(inputs, "drafts", nb::none()).is_none()) {
    step.drafts = read<int32_t>(inputs, "drafts");
  }
  if (!nb::getattr(inputs, "skip", nb::none()).is_none()) step.skip = read<int32_t>(inputs, "skip");
  step.target_ids = read<int32_t>(inputs, "target_ids");
  step.target_logprobs = read<int32_t>(inputs, "target_logprobs");
  step.copies = read_tables(inputs, "copies");
  step.states = read_table(inputs.attr("states"), "states");
  step.snapshots = read_table(inputs.attr("snapshots"), "snapshots");
  step.sampling = read_sampling(inputs.attr("sampling"));
  if (const nb::object slice = inputs.attr("slice"); !slice.is_none()) {
    step.slice = {nb::cast<int64_t>(slice.attr("sequence")), nb::cast<int64_t>(slice.attr("begin")),
                  nb::cast<int64_t>(slice.attr("end"))};
  }
  step.return_logits = nb::cast<bool>(inputs.attr("return_logits"));
  if (!inputs.attr("hidden").is_none()) step.hidden = read<uint8_t>(inputs, "hidden");
  if (!inputs.attr("hidden_layers").is_none()) {
    step.hidden_layers = read<int32_t>(inputs, "hidden_layers");
  }
  if (const nb::object overrides = inputs.attr("overrides"); !overrides.is_none()) {
    step.override_tokens = read<int32_t>(overrides, "tokens");
    const nb::object rows = overrides.attr("rows");
    const auto vectors = array<float, 2>(rows, "overrides.rows");
    step.override_rows.assign(vectors.data(), vectors.data() + vectors.size());
  }
  if (!inputs.attr("second").is_none()) step.second = read<int32_t>(inputs, "second");
  if (!nb::getattr(inputs, "adapters", nb::none()).is_none()) {
    step.adapters = read<int32_t>(inputs, "adapters");
  }
  return step;
}

nb::object write_layer_hidden(StepOutput& out) {
  if (out.layer_hidden.empty()) return nb::none();
  const auto layers = static_cast<size_t>(out.hidden_layers);
  const auto rows = static_cast<size_t>(out.hidden_rows);
  const size_t width = out.layer_hidden.size() / (layers * rows);
  return to_numpy(std::move(out.layer_hidden), {layers, rows, width});
}

nb::object write_candidates(StepOutput& out) {
  Candidates& found = out.candidates;
  if (found.rows == 0) return nb::none();
  const auto rows = static_cast<size_t>(found.rows), width = static_cast<size_t>(found.width);
  return nb::make_tuple(to_numpy(std::move(found.ids), {rows, width}),
                        to_numpy(std::move(found.scores), {rows, width}),
                        to_numpy(std::move(found.logprobs), {rows, width}));
}

nb::tuple write_output(StepOutput&& out, int64_t vocab) {
  const size_t sampled = out.sampled.size();
  const auto hidden_rows = static_cast<size_t>(out.hidden_rows);
  const nb::object hidden =
      hidden_rows == 0 ? nb::none()
                       : to_numpy(std::move(out.hidden),
                                  {hidden_rows, out.hidden.size() / hidden_rows});
  const nb::object logits =
      out.logit_rows == 0
          ? nb::none()
          : to_numpy(std::move(out.logits),
                     {static_cast<size_t>(out.logit_rows), static_cast<size_t>(vocab)});
  return nb::make_tuple(
      to_numpy(std::move(out.sampled), {sampled}), to_tuple(std::move(out.logprobs)),
      to_tuple(std::move(out.targets)), logits,
      nb::make_tuple(out.seconds[0], out.seconds[1], out.seconds[2], out.seconds[3]), hidden);
}

}  // namespace tidemill
