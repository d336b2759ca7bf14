// Register-only peak rates: the ceiling that the kernels' rates are compared with.
#pragma once
#include "kernels/kernels.h"

namespace tidemill {

// Seconds of this thread's processor time, which excludes preemption.
double thread_seconds();

// GOP/s (a multiply-add counts two) of one thread with the instruction that a table uses for
// activations of this type, all operands in registers; takes about a millisecond. 0 if there is no such
// loop.
double register_peak(const char* isa, ActType act);

}  // namespace tidemill
