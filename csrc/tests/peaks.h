// What registers alone reach: the ceiling that kernels' rates are a share of.
#pragma once
#include <vector>

#include "kernels.h"
#include "threadpool.h"

namespace tidemill::check {

// Seconds of this thread's own processor time: other work on the machine preempts.
double thread_seconds();

// GOP/s (a multiplication and an addition count two) of one thread with the instruction that a
// table multiplies activations of this type with, operands in registers throughout; about a
// millisecond. 0 where no such loop is written.
double register_peak(const char* isa, ActType act);

// The same of all the pool's threads at once, by the clock: virtual processors may share a core.
double register_peak_together(const char* isa, ActType act, ThreadPool& pool);

// Of at least one value.
double median(std::vector<double> values);

}  // namespace tidemill::check
