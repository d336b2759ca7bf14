// Peak rates of several threads, and medians of what is measured.
#pragma once
#include <vector>

#include "kernels/peaks.h"
#include "runtime/threadpool.h"

namespace tidemill::check {

// `register_peak` of all threads of the pool together, in wall-clock time: virtual processors may share a
// core.
double register_peak_together(const char* isa, ActType act, ThreadPool& pool);

// Of at least one value.
double median(std::vector<double> values);

}  // namespace tidemill::check
