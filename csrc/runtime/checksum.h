// A fast checksum against corruption, not against forgery.
#pragma once
#include <cstdint>

#include "runtime/threadpool.h"

namespace tidemill {

// 64 bits over `size` bytes, computed by all threads of the pool at about memory speed. Independent of
// the number of threads. Every step is a bijection of a lane's state, so chunks that differ in a single
// word never have the same sum.
uint64_t checksum(ThreadPool& pool, const uint8_t* data, int64_t size);

}  // namespace tidemill
