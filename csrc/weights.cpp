#include "weights.h"

#include <algorithm>

#include "error.h"

namespace tidemill {

namespace {

struct Storage {
  int64_t bytes, values;
};

Storage storage_of(WeightType type) {
  switch (type) {
    case WeightType::F32: return {4, 1};
    case WeightType::F16: return {2, 1};
    case WeightType::BF16: return {2, 1};
    case WeightType::Q8_0: return {34, 32};
    case WeightType::Q4_0: return {18, 32};
    case WeightType::MXFP4: return {17, 32};
    case WeightType::IQ4_NL: return {18, 32};
    case WeightType::Q4_K: return {144, 256};
    case WeightType::Q5_K: return {176, 256};
    case WeightType::Q6_K: return {210, 256};
    case WeightType::I8: break;  // a row has a head
  }
  throw internal_error("unknown weight type");
}

}  // namespace

int64_t source_row_bytes(WeightType type, int64_t k) {
  if (type == WeightType::I8) return 4 + k;
  const Storage storage = storage_of(type);
  if (k < 1 || k % storage.values != 0) {
    throw Error(ErrorKind::ModelFile, "a row of " + std::to_string(k) + " values is no multiple of " +
                                          std::to_string(storage.values));
  }
  return k / storage.values * storage.bytes;
}

WeightStore::WeightStore(const KernelTable& kernels, ThreadPool& pool, bool float32_compute)
    : kernels_(kernels), pool_(pool), float32_compute_(float32_compute) {}

int64_t WeightStore::matrix_bytes(WeightType type, int64_t n, int64_t k) const {
  const ActType act = kernels_.act_type(type, float32_compute_);
  return round_up((n + kPanel - 1) / kPanel * kernels_.panel_bytes(type, act, k),
                  static_cast<int64_t>(kAlign));
}

void WeightStore::reserve(int64_t bytes) {
  if (used_ != 0) throw internal_error("weights are reserved once, before the first matrix");
  region_ = Region(static_cast<size_t>(bytes), "the model's weights");
  data_ = region_.data();
  size_ = bytes;
}

void WeightStore::adopt(const uint8_t* data, int64_t bytes) {
  if (used_ != 0) throw internal_error("weights are adopted once, before the first matrix");
  if (reinterpret_cast<uintptr_t>(data) % kAlign != 0) throw internal_error("weights not aligned");
  region_ = Region();
  data_ = data;
  size_ = bytes;
}

const uint8_t* WeightStore::place(const std::string& name, int64_t bytes) {
  if (used_ + bytes > size_) {
    throw internal_error("weights exceed what was reserved for them", name);
  }
  const uint8_t* const data = data_ + used_;
  used_ += bytes;
  bytes_ += bytes;
  return data;
}

int WeightStore::add_packed(const std::string& name, WeightType type, int64_t n, int64_t k) {
  const ActType act = kernels_.act_type(type, float32_compute_);
  const uint8_t* const data = place(name, matrix_bytes(type, n, k));
  matrices_.push_back({type, act, n, k, kernels_.panel_bytes(type, act, k), data});
  return static_cast<int>(matrices_.size()) - 1;
}

int WeightStore::add_matrix(const std::string& name, WeightType from, WeightType to, int64_t n,
                            int64_t k, const uint8_t* source, int64_t source_bytes) {
  const int64_t row_bytes = source_row_bytes(from, k);
  if (n < 1 || source_bytes != n * row_bytes) {
    throw Error(ErrorKind::ModelFile,
                name + " has " + std::to_string(source_bytes) + " bytes where its shape [" +
                    std::to_string(n) + ", " + std::to_string(k) + "] needs " +
                    std::to_string(n * row_bytes) + ": the file is damaged or truncated",
                name);
  }
  if (region_.data() == nullptr) throw internal_error("adopted weights are packed already", name);
  const ActType act = kernels_.act_type(to, float32_compute_);
  const int64_t panel_bytes = kernels_.panel_bytes(to, act, k);
  uint8_t* const data = region_.data() + (place(name, matrix_bytes(to, n, k)) - region_.data());
  const int64_t panels = (n + kPanel - 1) / kPanel;
  pool_.run(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      kernels_.pack_panel(from, source, to, act, p * kPanel, n, k, data + p * panel_bytes);
    }
  });
  matrices_.push_back({to, act, n, k, panel_bytes, data});
  return static_cast<int>(matrices_.size()) - 1;
}

int WeightStore::add_vector(const std::string& name, WeightType from, int64_t count,
                            const uint8_t* source, int64_t source_bytes) {
  if (count < 1 || source_bytes != source_row_bytes(from, count)) {
    throw Error(ErrorKind::ModelFile,
                name + " has " + std::to_string(source_bytes) + " bytes, which is not " +
                    std::to_string(count) + " values of its type",
                name);
  }
  Vector vector{std::vector<float>(static_cast<size_t>(round_up(count, kPanel)), 0.0f), count};
  kernels_.to_float(from, source, count, vector.values.data());
  bytes_ += static_cast<int64_t>(vector.values.size() * sizeof(float));
  vectors_.push_back(std::move(vector));
  return static_cast<int>(vectors_.size()) - 1;
}

void WeightStore::free() {
  region_ = Region();
  data_ = nullptr;
  size_ = used_ = 0;
  bytes_ = 0;
}

const PackedMatrix& WeightStore::matrix(int id) const {
  if (id < 0 || id >= static_cast<int>(matrices_.size())) throw internal_error("no such matrix");
  return matrices_[static_cast<size_t>(id)];
}

const float* WeightStore::vector(int id, int64_t count) const {
  if (id < 0 || id >= static_cast<int>(vectors_.size())) throw internal_error("no such vector");
  const Vector& vector = vectors_[static_cast<size_t>(id)];
  if (vector.count != count) {
    throw internal_error("a vector has " + std::to_string(vector.count) + " values where " +
                         std::to_string(count) + " are needed");
  }
  return vector.values.data();
}

}  // namespace tidemill
