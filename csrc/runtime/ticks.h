// A clock that is cheap to read: the processor's, where it runs evenly, else the system's.
#pragma once
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace tidemill {

inline int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

#if defined(__x86_64__)
// Whether the counter advances evenly, at any frequency and in any sleep state.
inline bool has_even_ticks() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
}
inline const bool kEvenTicks = has_even_ticks();

inline int64_t ticks() { return kEvenTicks ? static_cast<int64_t>(__rdtsc()) : steady_ns(); }
#elif defined(__aarch64__)
inline int64_t ticks() {
  int64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
}
#else
inline int64_t ticks() { return steady_ns(); }
#endif

}  // namespace tidemill
