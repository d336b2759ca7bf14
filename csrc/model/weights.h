// A model's weights in memory: matrices packed into the kernels' panels, vectors as float.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "runtime/error.h"
#include "runtime/latch.h"
#include "runtime/threadpool.h"

namespace tidemill {

// Bytes of a row of `k` values as stored in a file; Error (ModelFile) if k is not a multiple of the
// type's block size.
int64_t source_row_bytes(WeightType type, int64_t k);

class WeightStore {
 public:
  WeightStore(const KernelTable& kernels, ThreadPool& pool, bool float32_compute);

  bool float32_compute() const { return float32_compute_; }
  // Bytes of a packed matrix in this store.
  int64_t matrix_bytes(WeightType type, int64_t n, int64_t k) const;
  // Reserves memory for all matrices at once; Error (Resource) if refused.
  void reserve(int64_t bytes);
  // Alternative to `reserve`: the matrices lie packed at `data`, which must be aligned to kAlign and
  // outlive this store.
  void adopt(const uint8_t* data, int64_t bytes);
  // Places the next matrix [n, k] and returns its id (consecutive). It may be used once `packed()` has
  // counted it: immediately in adopted memory, after `pack` in reserved memory.
  int add_matrix(const std::string& name, WeightType type, int64_t n, int64_t k);
  // Packs rows [first, last) of a matrix in parallel; `first` must start a panel. `source` is the whole
  // matrix as stored. Matrices are packed in the order of their ids, rows in ascending order. Callable
  // from any thread, concurrently with steps; counted in the pool's progress. Error (ModelFile, param =
  // name) if the size contradicts the shape, (Unavailable) after close.
  void pack(const std::string& name, int id, WeightType from, const uint8_t* source,
            int64_t source_bytes, int64_t first, int64_t last);
  // The remaining matrices will never be packed: steps that need them fail with this error.
  void fail(const Error& error);
  // Counts packed matrices. Steps wait here.
  Latch& packed() { return packed_; }
  // Reserved bytes that are not written yet.
  int64_t unpacked_bytes() const { return unpacked_.load(std::memory_order_relaxed); }
  // Stores a vector of `count` values as float, zero-padded to whole panels; returns its id.
  int add_vector(const std::string& name, WeightType from, int64_t count, const uint8_t* source,
                 int64_t source_bytes);
  // Aborts packing and steps that wait for it.
  void close();
  // Frees the matrices; nothing may use them any more.
  void free();
  // Counts memory that is used in place (a mapped embedding).
  void count_mapped(int64_t bytes) { bytes_ += bytes; }

  const PackedMatrix& matrix(int id) const;
  const float* vector(int id, int64_t count) const;  // checks that it has `count` values
  int64_t bytes() const { return bytes_; }
  // All matrices as they lie in memory, in insertion order.
  const uint8_t* data() const { return data_; }
  int64_t data_bytes() const { return used_; }

 private:
  struct Vector {
    std::vector<float> values;
    int64_t count;
  };
  const KernelTable& kernels_;
  ThreadPool& pool_;
  bool float32_compute_;
  // Address of the next matrix; Error (Internal) if it exceeds the reservation.
  const uint8_t* place(const std::string& name, int64_t bytes);

  Region region_;                   // empty if the memory is adopted
  const uint8_t* data_ = nullptr;   // points into `region_` or adopted memory
  int64_t size_ = 0;
  int64_t used_ = 0;
  int64_t bytes_ = 0;
  std::deque<PackedMatrix> matrices_;  // a deque: references stay valid
  std::deque<Vector> vectors_;
  Latch packed_;
  std::atomic<int64_t> unpacked_{0};
  std::mutex packing_;  // held while rows are packed
  bool closed_ = false;
  int64_t next_row_ = 0;  // of the matrix being packed
};

}  // namespace tidemill
