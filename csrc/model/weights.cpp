#include "model/weights.h"

#include <algorithm>

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
    case WeightType::Q4_1: return {20, 32};
    case WeightType::Q5_0: return {22, 32};
    case WeightType::Q5_1: return {24, 32};
    case WeightType::Q4_K: return {144, 256};
    case WeightType::Q5_K: return {176, 256};
    case WeightType::Q6_K: return {210, 256};
    case WeightType::I8: break;  // a row starts with its scale
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

int WeightStore::add_matrix(const std::string& name, WeightType type, int64_t n, int64_t k) {
  if (n < 1 || k < 1) throw internal_error("a matrix without values", name);
  const ActType act = kernels_.act_type(type, float32_compute_);
  const int64_t bytes = matrix_bytes(type, n, k);
  const uint8_t* const data = place(name, bytes);
  matrices_.push_back({type, act, n, k, kernels_.panel_bytes(type, act, k), data});
  const auto count = static_cast<int64_t>(matrices_.size());
  if (region_.data() == nullptr) {
    packed_.raise(count);
  } else {
    unpacked_ += bytes;
  }
  return static_cast<int>(count) - 1;
}

void WeightStore::pack(const std::string& name, int id, WeightType from, const uint8_t* source,
                       int64_t source_bytes, int64_t first, int64_t last) {
  const PackedMatrix& m = matrix(id);
  const int64_t row_bytes = source_row_bytes(from, m.k);
  if (source_bytes != m.n * row_bytes) {
    throw Error(ErrorKind::ModelFile,
                name + " has " + std::to_string(source_bytes) + " bytes where its shape [" +
                    std::to_string(m.n) + ", " + std::to_string(m.k) + "] needs " +
                    std::to_string(m.n * row_bytes) + ": the file is damaged or truncated",
                name);
  }
  std::lock_guard lock(packing_);
  if (closed_) throw closed_error();
  if (id != packed_.count() || first != next_row_ || last <= first || last > m.n ||
      (last != m.n && last % kPanel != 0)) {
    throw internal_error("matrices are packed in the order of their ids, by whole panels", name);
  }
  uint8_t* const data = region_.data() + (m.data - region_.data());
  const int64_t first_panel = first / kPanel, panels = (last - first + kPanel - 1) / kPanel;
  pool_.run(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = first_panel + begin; p < first_panel + end; ++p) {
      kernels_.pack_panel(from, source, m.type, m.act, p * kPanel, m.n, m.k,
                          data + p * m.panel_bytes);
    }
  });
  next_row_ = last;
  unpacked_ -= panels * m.panel_bytes;
  if (last < m.n) return;
  next_row_ = 0;
  if (id + 1 == static_cast<int>(matrices_.size())) unpacked_ = 0;  // including alignment padding
  packed_.raise(id + 1);
}

void WeightStore::fail(const Error& error) { packed_.fail(std::make_exception_ptr(error)); }

void WeightStore::close() {
  fail(closed_error());
  std::lock_guard lock(packing_);
  closed_ = true;
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
  bytes_ = unpacked_ = 0;
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
