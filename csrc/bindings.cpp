// The Python module _core: thin bindings of Executor, no computation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bindings_adapters.h"
#include "bindings_profile.h"
#include "bindings_step.h"
#include "runtime/bandwidth.h"
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "sample/race.h"
#include "sample/sampler.h"
#include "step/executor.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tidemill;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Blocks = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pairs = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::pair<ErrorKind, const char*> kKinds[] = {
    {ErrorKind::Internal, "internal"},       {ErrorKind::Resource, "resource"},
    {ErrorKind::Unsupported, "unsupported"}, {ErrorKind::ModelFile, "model_file"},
    {ErrorKind::Config, "config"},           {ErrorKind::Unavailable, "unavailable"},
};

const char* kind_name(ErrorKind kind) {
  for (const auto& [known, name] : kKinds) {
    if (known == kind) return name;
  }
  return kKinds[0].second;
}

ErrorKind kind_named(const std::string& name) {
  for (const auto& [kind, known] : kKinds) {
    if (name == known) return kind;
  }
  return ErrorKind::Internal;
}

void raise(ErrorKind kind, const char* message, const std::string& param) {
  const nb::module_ errors = nb::module_::import_("tidemill.base.errors");
  const nb::object type = errors.attr("TidemillError");
  const nb::object about = param.empty() ? nb::none() : nb::cast(param);
  const nb::object error =
      type(errors.attr("ErrorKind")(kind_name(kind)), message, "param"_a = about);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const Error& e) {
    raise(e.kind(), e.what(), e.param());
  } catch (const std::bad_alloc&) {
    raise(ErrorKind::Resource, "out of memory: use a smaller batch, cache or model", "");
  }
}

// A submitted step as Python sees it. When Python drops it, the result will not be requested any more.
class Handle {
 public:
  Handle(std::shared_ptr<Step> step, int64_t vocab) : step_(std::move(step)), vocab_(vocab) {}
  ~Handle() { step_->release(); }
  void set_mask(int64_t row, int64_t draft, const Bytes& bits) {
    step_->masks.set(row, draft, bits.data(), static_cast<int64_t>(bits.size()));
  }
  bool done(double seconds) const {
    if (seconds <= 0) return step_->done();
    nb::gil_scoped_release release;
    return step_->wait(seconds);
  }
  nb::tuple result() {
    StepOutput output;
    {
      nb::gil_scoped_release release;
      output = step_->take();
    }
    layer_hidden_ = write_layer_hidden(output);
    candidates_ = write_candidates(output);
    return write_output(std::move(output), vocab_);
  }
  // After `result`.
  nb::object layer_hidden() const { return layer_hidden_; }
  nb::object candidates() const { return candidates_; }

 private:
  std::shared_ptr<Step> step_;
  int64_t vocab_;
  nb::object layer_hidden_ = nb::none(), candidates_ = nb::none();
};

void bind_config(nb::module_& m) {
#define STRUCT(name) \
  {                  \
    using Config = name; \
    nb::class_<Config> config(m, #name); \
    config.def(nb::init<>());
#define DERIVED(name, base) \
  {                         \
    using Config = name;    \
    nb::class_<Config, base> config(m, #name); \
    config.def(nb::init<>());
#define FIELD(name, ...) config.def_rw(#name, &Config::name);
#define END }
#include "model/config_fields.inl"
#undef STRUCT
#undef DERIVED
#undef FIELD
#undef END
}

int64_t size_of(const Bytes& bytes) { return static_cast<int64_t>(bytes.size()); }

EmbeddingSource source_of(const Bytes& bytes) {
  return {bytes.size() == 0 ? nullptr : bytes.data(), size_of(bytes)};
}

// Arrays of one layer's blocks in portable form, validated against the cache.
template <class Data, class Scale>
void check_portable(const KvCache& cache, int layer, const Blocks& blocks, const Data& keys,
                    const Data& values, const Scale& key_scales, const Scale& value_scales) {
  int64_t group = -1;
  for (int64_t g = 0; g < cache.groups(); ++g) {
    for (const int l : cache.group(g).layers) group = l == layer ? g : group;
  }
  if (group < 0) throw internal_error("no layer " + std::to_string(layer));
  cache.check_blocks(group, blocks.data(), static_cast<int64_t>(blocks.size()));
  const size_t tokens = blocks.size() * static_cast<size_t>(cache.block_size());
  const PortableSizes size = portable_sizes(cache.layer(layer));
  const auto fits = [&](const auto& array, int64_t per_token) {
    return array.size() == tokens * static_cast<size_t>(per_token);
  };
  if (!fits(keys, size.k_bytes) || !fits(values, size.v_bytes) ||
      !fits(key_scales, size.k_scales) || !fits(value_scales, size.v_scales)) {
    throw internal_error("exported blocks do not have this cache's shape and type");
  }
}

void export_layer(Executor& e, int layer, const Blocks& blocks, const WritableBytes& keys,
                  const WritableBytes& values, const WritableFloats& key_scales,
                  const WritableFloats& value_scales) {
  nb::gil_scoped_release release;
  e.with_idle_cache([&](KvCache& cache, ThreadPool& pool) {
    check_portable(cache, layer, blocks, keys, values, key_scales, value_scales);
    cache.export_layer(layer, blocks.data(), static_cast<int64_t>(blocks.size()), keys.data(),
                       values.data(), key_scales.data(), value_scales.data(), pool);
  });
}

void import_layer(Executor& e, int layer, const Blocks& blocks, const Bytes& keys,
                  const Bytes& values, const Scales& key_scales, const Scales& value_scales) {
  nb::gil_scoped_release release;
  e.with_idle_cache([&](KvCache& cache, ThreadPool& pool) {
    check_portable(cache, layer, blocks, keys, values, key_scales, value_scales);
    cache.import_layer(layer, blocks.data(), static_cast<int64_t>(blocks.size()), keys.data(),
                       values.data(), key_scales.data(), value_scales.data(), pool);
  });
}

// Bytes of blocks in the cache's own form.
void check_raw(const KvCache& cache, int64_t group, const Blocks& blocks, size_t bytes) {
  cache.check_blocks(group, blocks.data(), static_cast<int64_t>(blocks.size()));
  if (bytes != blocks.size() * static_cast<size_t>(cache.block_bytes(group))) {
    throw internal_error("these bytes are not so many blocks of this cache");
  }
}

void read_blocks(Executor& e, int64_t group, const Blocks& blocks, const WritableBytes& out) {
  nb::gil_scoped_release release;
  e.with_live_cache([&](KvCache& cache) {
    check_raw(cache, group, blocks, out.size());
    cache.read_blocks(group, blocks.data(), static_cast<int64_t>(blocks.size()), out.data());
  });
}

void write_blocks(Executor& e, int64_t group, const Blocks& blocks, const Bytes& data) {
  nb::gil_scoped_release release;
  e.with_live_cache([&](KvCache& cache) {
    check_raw(cache, group, blocks, data.size());
    cache.write_blocks(group, blocks.data(), static_cast<int64_t>(blocks.size()), data.data());
  });
}

void read_state(Executor& e, int64_t state, int64_t at, const WritableBytes& out) {
  nb::gil_scoped_release release;
  e.with_live_cache([&](KvCache& cache) {
    cache.states().read(state, at, static_cast<int64_t>(out.size()), out.data());
  });
}

void write_state(Executor& e, int64_t state, int64_t at, const Bytes& data, int64_t tokens) {
  nb::gil_scoped_release release;
  e.with_live_cache([&](KvCache& cache) {
    cache.states().write(state, at, static_cast<int64_t>(data.size()), data.data(), tokens);
  });
}

void bind_executor(nb::module_& m) {
  nb::class_<Handle>(m, "Handle")
      .def("set_mask", &Handle::set_mask, "row"_a, "draft"_a, "bits"_a)
      .def("done", &Handle::done, "seconds"_a = 0.0)
      .def("result", &Handle::result)
      .def("layer_hidden", &Handle::layer_hidden)
      .def("candidates", &Handle::candidates);

  bind_adapters(m);
  nb::class_<Executor>(m, "Executor")
      .def(nb::init<int, const std::string&, bool>(), "threads"_a, "isa"_a, "float32_compute"_a)
      .def_prop_ro("isa", &Executor::isa)
      .def_prop_ro("threads", &Executor::threads)
      .def_prop_ro("float32_compute", [](Executor& e) { return e.weights().float32_compute(); })
      .def("matrix_bytes",
           [](Executor& e, int type, int64_t n, int64_t k) {
             return e.weights().matrix_bytes(static_cast<WeightType>(type), n, k);
           })
      .def("reserve", [](Executor& e, int64_t bytes) { e.weights().reserve(bytes); })
      .def("adopt",
           [](Executor& e, const Bytes& packed) {
             e.weights().adopt(packed.data(), size_of(packed));
           })
      .def("add_matrix",
           [](Executor& e, const std::string& name, int type, int64_t n, int64_t k) {
             return e.weights().add_matrix(name, static_cast<WeightType>(type), n, k);
           })
      .def("packed",
           [](nb::handle self) {
             const WeightStore& weights = nb::cast<Executor&>(self).weights();
             return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(
                 weights.data(), {static_cast<size_t>(weights.data_bytes())}, self);
           })
      .def("pack",
           [](Executor& e, const std::string& name, int id, int from, const Bytes& source,
              int64_t first, int64_t last) {
             nb::gil_scoped_release release;
             e.weights().pack(name, id, static_cast<WeightType>(from), source.data(),
                              size_of(source), first, last);
           })
      .def("fail",
           [](Executor& e, const std::string& kind, const std::string& message,
              const std::string& param) {
             e.weights().fail(Error(kind_named(kind), message, param));
           })
      .def("unpacked_bytes", [](Executor& e) { return e.weights().unpacked_bytes(); })
      .def("add_vector",
           [](Executor& e, const std::string& name, int from, int64_t count, const Bytes& source) {
             return e.weights().add_vector(name, static_cast<WeightType>(from), count,
                                           source.data(), size_of(source));
           })
      .def("build",
           [](Executor& e, const ModelConfig& config, const Bytes& embedding, const Bytes& inputs) {
             e.build(config, source_of(embedding), source_of(inputs));
           })
      .def("join", &Executor::join, "descriptor"_a, "rank"_a, "ranks"_a)
      .def("join_chain", &Executor::join_chain, "from_"_a, "to"_a, "stage"_a, "stages"_a)
      .def("fail_group", &Executor::fail_group)
      .def("weight_bytes", &Executor::weight_bytes)
      .def("kv_bytes", &Executor::kv_bytes)
      .def("block_bytes", &Executor::block_bytes)
      .def("state_bytes", &Executor::state_bytes)
      .def("allocate_cache", &Executor::allocate_cache, nb::call_guard<nb::gil_scoped_release>())
      .def("retype_cache", &Executor::retype_cache, nb::call_guard<nb::gil_scoped_release>())
      .def("submit",
           [](Executor& e, nb::handle inputs, int64_t vocab) {
             StepInput step = read_step(inputs);
             return new Handle(e.submit(std::move(step)), vocab);
           },
           nb::rv_policy::take_ownership)
      .def("new_adapter", &Executor::new_adapter)
      .def("load_adapter", &Executor::load_adapter, "slot"_a, "adapter"_a.none(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("copy_blocks",
           [](Executor& e, int64_t group, const Pairs& pairs) {
             nb::gil_scoped_release release;
             e.copy_blocks(group, pairs.data(), static_cast<int64_t>(pairs.shape(0)));
           })
      .def("give_back_blocks",
           [](Executor& e, int64_t group, const Blocks& blocks) {
             nb::gil_scoped_release release;
             e.give_back_blocks(group, blocks.data(), static_cast<int64_t>(blocks.size()));
           })
      .def("limit_cache", &Executor::limit_cache, nb::call_guard<nb::gil_scoped_release>())
      .def("export_layer", &export_layer)
      .def("import_layer", &import_layer)
      .def("start_profile", &Executor::start_profile, "most_events"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("end_profile",
           [](Executor& e) -> nb::object {
             std::unique_ptr<Profile> profile;
             {
               nb::gil_scoped_release release;
               profile = e.end_profile();
             }
             return profile ? nb::object(write_profile(*profile)) : nb::none();
           })
      .def("peak",
           [](Executor& e, int act) {
             nb::gil_scoped_release release;
             return e.peak(static_cast<ActType>(act));
           })
      .def("read_blocks", &read_blocks)
      .def("write_blocks", &write_blocks)
      .def("read_state", &read_state)
      .def("write_state", &write_state)
      .def("progress", &Executor::progress)
      .def("close", &Executor::close, nb::call_guard<nb::gil_scoped_release>());
}

// Samples rows of logits without a model: what a step does after the output layer.
std::vector<int32_t> sample_rows(const Floats& logits, nb::handle sampling,
                                 const std::vector<nb::object>& masks) {
  const SamplingInput in = read_sampling(sampling);
  const auto rows = static_cast<int64_t>(logits.shape(0));
  const auto vocab = static_cast<int64_t>(logits.shape(1));
  if (in.rows() != rows) throw internal_error("as many rows of logits as of sampling are needed");
  Sampler sampler(vocab);
  std::vector<float> work(static_cast<size_t>(vocab));
  std::vector<int32_t> tokens;
  for (int64_t s = 0; s < rows; ++s) {
    std::memcpy(work.data(), logits.data() + s * vocab, work.size() * sizeof(float));
    SampleRow row{s};
    Bytes bits;
    if (!masks.empty() && !masks[static_cast<size_t>(s)].is_none()) {
      bits = nb::cast<Bytes>(masks[static_cast<size_t>(s)]);
      row.mask = bits.data();
    }
    tokens.push_back(sampler.sample(in, row, work.data()));
  }
  return tokens;
}

}  // namespace

NB_MODULE(_core, m) {
  // A model that is still loaded at interpreter exit is not a leak: the process frees it.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  bind_config(m);
  bind_executor(m);
  m.attr("PANEL_ROWS") = kPanel;
  m.attr("GROUP_BYTES") = Group::shared_bytes();
  m.def("shard_bounds", [](int64_t n, int ranks) { return Shard{0, ranks}.bounds(n); }, "n"_a, "ranks"_a);
  m.attr("PROFILE_NAMES") = profile_names();
  m.def("sample_rows", &sample_rows, "logits"_a, "sampling"_a, "masks"_a);
  // The tokens that each row would be drawn from, of logits without masks.
  m.def("drawn_from", [](const Floats& logits, nb::handle sampling) {
    const SamplingInput in = read_sampling(sampling);
    const auto vocab = static_cast<int64_t>(logits.shape(1));
    Sampler sampler(vocab);
    std::vector<std::vector<int32_t>> rows;
    for (int64_t s = 0; s < in.rows(); ++s) {
      std::vector<float> work(logits.data() + s * vocab, logits.data() + (s + 1) * vocab);
      rows.push_back(sampler.drawn_from(in, {s}, work.data()));
    }
    return rows;
  }, "logits"_a, "sampling"_a);
  m.def("uniform", [](uint64_t seed, uint32_t choice, uint32_t position, uint32_t draw) {
    return uniform({seed, choice, position}, static_cast<Draw>(draw));
  });
  m.def("race_time", [](uint64_t seed, uint32_t choice, uint32_t position, int64_t token) {
    return race_time({seed, choice, position}, token);
  });
  m.def("philox4x32", [](std::vector<uint32_t> counter, std::vector<uint32_t> key) {
    if (counter.size() != 4 || key.size() != 2) throw internal_error("four words and two");
    const auto words = philox4x32({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
    return std::vector<uint32_t>(words.begin(), words.end());
  });
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const char* const* name = available_isas(); *name != nullptr; ++name) {
      names.emplace_back(*name);
    }
    return names;
  });
  m.def("checksum",
        [](const Bytes& data, int threads) {
          nb::gil_scoped_release release;
          ThreadPool pool(threads);
          return checksum(pool, data.data(), static_cast<int64_t>(data.size()));
        },
        "data"_a, "threads"_a);
  m.def("read_bandwidth",
        [](int threads, size_t bytes_per_thread, int rounds) {
          nb::gil_scoped_release release;
          return measure_read_bandwidth(threads, bytes_per_thread, rounds);
        },
        "threads"_a, "bytes_per_thread"_a, "rounds"_a);
}
