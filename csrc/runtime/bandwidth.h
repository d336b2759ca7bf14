// Measures the read bandwidth of the machine.
#pragma once
#include <cstddef>

namespace tidemill {

// Bytes per second that `threads` threads read together from buffers of `bytes_per_thread` each: the
// best of `rounds` passes; each pass reads every byte once, sequentially.
double measure_read_bandwidth(int threads, std::size_t bytes_per_thread, int rounds);

}  // namespace tidemill
