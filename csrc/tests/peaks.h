// Register-only peak rates: the ceiling that the kernels' rates are compared with.
#pragma once
#include <vector>

#include "kernels/kernels.h"
#include "runtime/threadpool.h"

namespace tidemill::check {

// Seconds of this thread's processor time, which excludes preemption.
double thread_seconds();

// GOP/s (a multiply-add counts two) of one thread with the instruction that a table uses for
// activations of this type, all operands in registers; takes about a millisecond. 0 if there is no such
// loop.
double register_peak(const char* isa, ActType act);

// The same for all threads of the pool together, in wall-clock time: virtual processors may share a
// core.
double register_peak_together(const char* isa, ActType act, ThreadPool& pool);

// Of at least one value.
double median(std::vector<double> values);

}  // namespace tidemill::check
