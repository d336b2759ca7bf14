#include "peaks.h"

#include <algorithm>
#include <chrono>

namespace tidemill::check {

double register_peak_together(const char* isa, ActType act, ThreadPool& pool) {
  // Each thread reports the rate per its own processor time.
  std::vector<double> operations(size_t(pool.threads()));
  const auto start = std::chrono::steady_clock::now();
  pool.run_tapered(pool.threads(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const double from = thread_seconds(), rate = register_peak(isa, act);
      operations[size_t(i)] = rate * (thread_seconds() - from);
    }
  });
  double sum = 0;
  for (double of : operations) sum += of;
  return sum / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace tidemill::check
