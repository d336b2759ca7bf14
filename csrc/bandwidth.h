// Plain reads of memory, to measure what the machine can deliver.
#pragma once
#include <cstddef>

namespace tidemill {

// Bytes per second that `threads` threads read together from buffers of `bytes_per_thread` each:
// the best of `rounds` passes, every byte read once per pass, sequentially.
double measure_read_bandwidth(int threads, std::size_t bytes_per_thread, int rounds);

}  // namespace tidemill
