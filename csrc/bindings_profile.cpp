#include "bindings_profile.h"

#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace tidemill {

namespace {

// As contract/profile.py reads them: times in ns since the profile's start.
struct Record {
  int64_t begin_ns, ns;
  int32_t rows, tokens;
  int16_t thread, layer;
  int8_t what, part, kernel, weight;
};
static_assert(sizeof(Record) == 32);

nb::bytes write_events(const Profile& profile, double ns) {
  std::vector<Record> records;
  records.reserve(profile.events().size());
  for (const Profile::Event& event : profile.events()) {
    records.push_back({static_cast<int64_t>(static_cast<double>(event.begin - profile.started()) * ns),
                       static_cast<int64_t>(static_cast<double>(event.ticks) * ns), event.rows,
                       event.tokens, event.thread, event.layer, static_cast<int8_t>(event.what),
                       static_cast<int8_t>(event.part), static_cast<int8_t>(event.kernel), event.weight});
  }
  return nb::bytes(records.data(), records.size() * sizeof(Record));
}

}  // namespace

nb::tuple write_profile(const Profile& profile) {
  const double ns = profile.ns_per_tick();
  nb::dict totals;
  totals["steps"] = profile.steps;
  totals["rows"] = profile.rows;
  totals["tokens"] = profile.tokens;
  totals["step_ns"] = static_cast<double>(profile.step_ticks) * ns;
  totals["cut_events"] = profile.cut_events;
  nb::list counters;
  for (const Profile::Counter& of : profile.counters()) {
    const LoopWork& work = of.work;
    counters.append(nb::make_tuple(name_of(of.part), name_of(work.kernel), static_cast<int>(work.weight),
                                   static_cast<int>(work.act), work.few, of.calls,
                                   static_cast<double>(of.ticks) * ns,
                                   static_cast<double>(of.busy_ticks) * ns, work.bytes, work.operations));
  }
  return nb::make_tuple(totals, counters, write_events(profile, ns));
}

nb::tuple profile_names() {
  nb::list parts, kernels;
  for (int part = 0; part < kParts; ++part) parts.append(name_of(static_cast<Part>(part)));
  for (int kernel = 0; kernel < kKernels; ++kernel) kernels.append(name_of(static_cast<Kernel>(kernel)));
  return nb::make_tuple(parts, kernels);
}

}  // namespace tidemill
