// Binding of adapters: arrays in, one method per kind of change.
#pragma once
#include <nanobind/nanobind.h>

namespace tidemill {

void bind_adapters(nanobind::module_& m);

}  // namespace tidemill
