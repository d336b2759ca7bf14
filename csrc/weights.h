// A model's weights in memory: matrices repacked into the kernels' panels, vectors as float.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "error.h"
#include "kernels.h"
#include "latch.h"
#include "memory.h"
#include "threadpool.h"

namespace tidemill {

// Bytes of one row of `k` values as stored in a file; Error (ModelFile) when k is no whole number
// of the type's blocks.
int64_t source_row_bytes(WeightType type, int64_t k);

class WeightStore {
 public:
  WeightStore(const KernelTable& kernels, ThreadPool& pool, bool float32_compute);

  // Bytes a packed matrix takes in this store.
  int64_t matrix_bytes(WeightType type, int64_t n, int64_t k) const;
  // Reserves the memory of all matrices at once; Error (Resource) when refused.
  void reserve(int64_t bytes);
  // Instead of `reserve`: the matrices lie packed at `data`, which must be aligned to kAlign and
  // outlive this store.
  void adopt(const uint8_t* data, int64_t bytes);
  // Places the next matrix [n, k]; returns its id, one more than the last. It may be used once
  // `packed()` counts it: in adopted memory at once, in reserved memory when `pack` was there.
  int add_matrix(const std::string& name, WeightType type, int64_t n, int64_t k);
  // Packs rows [first, last) of a matrix, in parallel; `first` begins a panel. `source` is all of it,
  // as stored. Matrices are packed one after the other, in the order of their ids, and their rows in
  // ascending order. From any thread, beside steps; the pool's progress counts it.
  // Error (ModelFile, param = name) when the size contradicts the shape, (Unavailable) when closed.
  void pack(const std::string& name, int id, WeightType from, const uint8_t* source,
            int64_t source_bytes, int64_t first, int64_t last);
  // What is not packed never will be: steps that need it fail with this.
  void fail(const Error& error);
  // How many matrices are packed. Steps wait here.
  Latch& packed() { return packed_; }
  // Bytes that are reserved and not written yet.
  int64_t unpacked_bytes() const { return unpacked_.load(std::memory_order_relaxed); }
  // Keeps a vector of `count` values as float, padded with zeros to whole panels; returns its id.
  int add_vector(const std::string& name, WeightType from, int64_t count, const uint8_t* source,
                 int64_t source_bytes);
  // Ends packing, and the wait of steps for it.
  void close();
  // Gives the matrices' memory back; closed, and nothing may use them any more.
  void free();
  // Counts memory that is used in place (a mapped embedding).
  void count_mapped(int64_t bytes) { bytes_ += bytes; }

  const PackedMatrix& matrix(int id) const;
  const float* vector(int id, int64_t count) const;  // checks that it has `count` values
  int64_t bytes() const { return bytes_; }
  // All matrices as they lie in memory, in the order they were added.
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
  // Where the next matrix lies; Error (Internal) when it exceeds what there is.
  const uint8_t* place(const std::string& name, int64_t bytes);

  Region region_;                   // empty when the memory is adopted
  const uint8_t* data_ = nullptr;   // of `region_`, or adopted
  int64_t size_ = 0;
  int64_t used_ = 0;
  int64_t bytes_ = 0;
  std::deque<PackedMatrix> matrices_;  // a deque: references stay valid
  std::deque<Vector> vectors_;
  Latch packed_;
  std::atomic<int64_t> unpacked_{0};
  std::mutex packing_;  // held while rows are packed
  bool closed_ = false;
  int64_t next_row_ = 0;  // of the matrix that is being packed
};

}  // namespace tidemill
