// A profile as Python sees it.
#pragma once
#include <nanobind/nanobind.h>

#include "runtime/profile.h"

namespace tidemill {

// (totals, counters, events): totals by name; a counter is (part, kernel, weight type, activation type, few
// rows, calls, ns, busy ns, bytes, operations), where -1 is no type; events are bytes of records as
// contract/profile.py reads them.
nanobind::tuple write_profile(const Profile& profile);
// Names of parts and kernels, by their numbers in events.
nanobind::tuple profile_names();

}  // namespace tidemill
