// A fast checksum that tells damaged bytes, not forged ones.
#pragma once
#include <cstdint>

#include "threadpool.h"

namespace tidemill {

// 64 bits over `size` bytes, read once by all threads of the pool: about as fast as memory is. The
// same for any number of threads. Every step is a bijection of a lane's state, so that bytes that
// differ in a single word of a chunk never have the same sum.
uint64_t checksum(ThreadPool& pool, const uint8_t* data, int64_t size);

}  // namespace tidemill
