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
  // Packs a matrix [n, k] of `source_bytes` bytes, in parallel; returns its id.
  // Error (ModelFile, param = name) when the size contradicts the shape.
  int add_matrix(const std::string& name, WeightType from, WeightType to, int64_t n, int64_t k,
                 const uint8_t* source, int64_t source_bytes);
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

 private:
  struct Vector {
    std::vector<float> values;
    int64_t count;
  };
  const KernelTable& kernels_;
  ThreadPool& pool_;
  bool float32_compute_;
  Region region_;
  int64_t used_ = 0;
  int64_t bytes_ = 0;
  std::deque<PackedMatrix> matrices_;  // a deque: references stay valid
  std::deque<Vector> vectors_;
};

}  // namespace tidemill
