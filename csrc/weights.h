// A model's weights in memory: matrices repacked into the kernels' panels, vectors as float.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kernels.h"
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
  // outlive this store. `add_packed` finds them there.
  void adopt(const uint8_t* data, int64_t bytes);
  // Packs a matrix [n, k] of `source_bytes` bytes, in parallel; returns its id.
  // Error (ModelFile, param = name) when the size contradicts the shape.
  int add_matrix(const std::string& name, WeightType from, WeightType to, int64_t n, int64_t k,
                 const uint8_t* source, int64_t source_bytes);
  // The next matrix of an adopted memory, where `add_matrix` would have put it; returns its id.
  int add_packed(const std::string& name, WeightType type, int64_t n, int64_t k);
  // Keeps a vector of `count` values as float, padded with zeros to whole panels; returns its id.
  int add_vector(const std::string& name, WeightType from, int64_t count, const uint8_t* source,
                 int64_t source_bytes);
  // Gives the matrices' memory back; nothing may use them any more.
  void free();
  // Counts memory that is used in place (a mapped embedding).
  void count_mapped(int64_t bytes) { bytes_ += bytes; }

  const PackedMatrix& matrix(int id) const;
  const float* vector(int id, int64_t count) const;  // checks that it has `count` values
  int64_t bytes() const { return bytes_; }
  // All matrices as they lie in memory, in the order they were added.
  const uint8_t* packed() const { return data_; }
  int64_t packed_bytes() const { return used_; }

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
};

}  // namespace tidemill
