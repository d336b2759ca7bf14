// Adapters: changes of a model's products, embedding and vectors that some rows of a step take.
//
// An adapter is filled once, outside of steps, and never changes afterwards. A step holds the adapters of
// its rows, so that one may be unloaded or replaced while the step is in flight.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "model/linear.h"

namespace tidemill {

// What an adapter makes of one matrix. With a replacement, the low-rank part changes its product.
struct MatrixChange {
  LowRank low{};           // rank 0 without factor and shift: no change
  PackedMatrix replaced{}; // data null: the base's
  bool changes_outputs() const { return low.rank > 0 || low.factor != nullptr || low.shift != nullptr; }
};

// Rows of the embedding: E'[t] = gain[t] * (E[t] + B[t] A) * factor.
struct EmbeddingChange {
  LowRank low{};                      // n = hidden; its `b` are panels of A
  const uint8_t* rows = nullptr;      // [vocab, rank] of B
  const uint8_t* replaced = nullptr;  // [vocab, hidden], or null
  const float* gain = nullptr;        // [vocab], or null
};

// A change of a product as it arrives: y = gain * (W x' + scale * B (A x')), x' = input_gain * x. Float
// arrays, row-major.
struct LowRankValues {
  const float *a, *b;       // [rank, k], [n, rank]
  int64_t rank;
  float scale;
  const float* gain;        // per output, or null
  const float* input_gain;  // per input, or null
};

class Adapter {
 public:
  // `wide`: values are kept as float, else as bfloat16.
  Adapter(const KernelTable& kernels, bool wide) : kernels_(kernels), wide_(wide) {}
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  // Bytes that change_product and change_embedding will take for a matrix [n, k].
  static int64_t product_bytes(bool wide, int64_t n, int64_t k, int64_t rank);
  static int64_t embedding_bytes(bool wide, int64_t n, int64_t k, int64_t rank);
  // Memory for everything that follows, as one piece; Error (Resource) if refused.
  void reserve(int64_t bytes) { chunks_.emplace_back().ensure(bytes); }

  // The product with matrix `id` of the base. With `input_gain` the product is one with the changed
  // matrix instead, made of the base's packed values. `base_bias` is the base's, or null.
  void change_product(int id, const PackedMatrix& base, const float* base_bias,
                      const LowRankValues& values);
  // Adds `shift` [n] to the outputs of matrix `id`.
  void shift_product(int id, int64_t n, int64_t k, const float* shift);
  // The product with matrix `id` is one with these values [n, k] instead.
  void replace_product(int id, int64_t n, int64_t k, const float* values);
  // Rows of the embedding [n, k].
  void change_embedding(int64_t n, int64_t k, const LowRankValues& values);
  void replace_embedding(int64_t n, int64_t k, const float* values);
  // `values` stand where the base's vector `base` is read.
  void replace_vector(const float* base, int64_t count, const float* values);

  // The change of a product, or null.
  const MatrixChange* of(const Linear& linear) const {
    const auto id = static_cast<size_t>(linear.id);
    return linear.id >= 0 && id < by_matrix_.size() ? by_matrix_[id] : nullptr;
  }
  const EmbeddingChange* embedding() const { return embeds_ ? &embedding_ : nullptr; }
  // Changes `row`, the base's row of token `id`, of `width` values.
  void embed(int64_t id, int64_t width, float* row) const;
  bool replaces_vectors() const { return !vectors_.empty(); }
  const float* vector(const float* base) const {
    const auto found = vectors_.find(base);
    return found == vectors_.end() ? base : found->second;
  }
  int64_t bytes() const { return bytes_; }
  ActType act() const { return wide_ ? ActType::F32 : ActType::BF16; }

 private:
  uint8_t* place(int64_t bytes);
  float* padded(int64_t count, const float* values, float fill);
  MatrixChange& change(int id, int64_t n, int64_t k);
  void store(const float* values, int64_t count, uint8_t* to) const;
  void change_gain(int id, const PackedMatrix& base, const float* base_bias, const float* gain);
  void merge_product(int id, const PackedMatrix& base, const LowRankValues& values);
  const uint8_t* place_rows(const float* values, int64_t rows, int64_t k, int64_t* stride);
  // Panels of B [n, rank] whose element (n, r) is values[n * row + r * column].
  const uint8_t* place_panels(const float* values, int64_t n, int64_t rank, int64_t row, int64_t column);
  int64_t size() const { return wide_ ? 4 : 2; }

  const KernelTable& kernels_;
  bool wide_;
  std::deque<Buffer<uint8_t>> chunks_;
  int64_t used_ = 0;  // of the last chunk
  int64_t bytes_ = 0;
  std::deque<MatrixChange> changes_;
  std::vector<MatrixChange*> by_matrix_;
  EmbeddingChange embedding_;
  bool embeds_ = false;
  std::unordered_map<const float*, const float*> vectors_;
};

// The adapters of rows of activations, and each adapter's rows.
class RowAdapters {
 public:
  struct Group {
    const Adapter* adapter;
    std::vector<int32_t> rows;  // ascending
  };

  void clear() {
    of_row_.clear();
    groups_.clear();
  }
  // Rows must be added in ascending order, without gaps.
  void add(const Adapter* adapter);
  const Adapter* of(int64_t row) const { return of_row_[static_cast<size_t>(row)]; }
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<const Adapter*> of_row_;
  std::vector<Group> groups_;
};

}  // namespace tidemill
