#include "model/adapters.h"

#include <algorithm>
#include <cstring>

#include "runtime/error.h"

namespace tidemill {

namespace {

// Least size of memory that is taken at once where none was reserved.
constexpr int64_t kChunk = int64_t{16} << 10;

// Round to nearest even. NaN and infinity do not arrive here.
uint16_t bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

int64_t aligned(int64_t bytes) { return round_up(bytes, static_cast<int64_t>(kAlign)); }

float value_at(const uint8_t* values, bool wide, int64_t at) {
  if (wide) return reinterpret_cast<const float*>(values)[at];
  const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(values)[at]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

int64_t Adapter::product_bytes(bool wide, int64_t n, int64_t k, int64_t rank) {
  const int64_t size = wide ? 4 : 2;
  return aligned(rank * aligned(round_up(k, kLowRankStep) * size)) + aligned(round_up(n, kPanel) * rank * size);
}

int64_t Adapter::embedding_bytes(bool wide, int64_t n, int64_t k, int64_t rank) {
  const int64_t size = wide ? 4 : 2;
  return aligned(round_up(k, kPanel) * rank * size) + aligned(n * rank * size);
}

uint8_t* Adapter::place(int64_t bytes) {
  bytes = aligned(bytes);
  if (chunks_.empty() || used_ + bytes > chunks_.back().capacity()) {
    chunks_.emplace_back().ensure(std::max(bytes, kChunk));
    used_ = 0;
  }
  uint8_t* const data = chunks_.back().data() + used_;
  used_ += bytes;
  bytes_ += bytes;
  std::memset(data, 0, static_cast<size_t>(bytes));  // what pads rows and panels
  return data;
}

float* Adapter::padded(int64_t count, const float* values, float fill) {
  const int64_t whole = round_up(count, kPanel);
  auto* const to = reinterpret_cast<float*>(place(whole * int64_t{sizeof(float)}));
  std::copy_n(values, count, to);
  std::fill(to + count, to + whole, fill);
  return to;
}

void Adapter::store(const float* values, int64_t count, uint8_t* to) const {
  if (wide_) {
    std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* const halves = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) halves[i] = bfloat16(values[i]);
}

const uint8_t* Adapter::place_rows(const float* values, int64_t rows, int64_t k, int64_t* stride) {
  *stride = aligned(round_up(k, kLowRankStep) * size());
  uint8_t* const data = place(rows * *stride);
  for (int64_t r = 0; r < rows; ++r) store(values + r * k, k, data + r * *stride);
  return data;
}

const uint8_t* Adapter::place_panels(const float* values, int64_t n, int64_t rank, int64_t row,
                                     int64_t column) {
  uint8_t* const data = place(round_up(n, kPanel) * rank * size());
  for (int64_t p = 0; p < n; p += kPanel) {
    uint8_t* const panel = data + p * rank * size();
    const int64_t count = std::min(kPanel, n - p);
    float lanes[kPanel];
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t i = 0; i < count; ++i) lanes[i] = values[(p + i) * row + r * column];
      store(lanes, count, panel + r * kPanel * size());
    }
  }
  return data;
}

MatrixChange& Adapter::change(int id, int64_t n, int64_t k) {
  if (id < 0) throw internal_error("an adapter changes no matrix");
  const auto at = static_cast<size_t>(id);
  if (by_matrix_.size() <= at) by_matrix_.resize(at + 1, nullptr);
  if (by_matrix_[at] == nullptr) {
    changes_.emplace_back();
    by_matrix_[at] = &changes_.back();
    LowRank& low = changes_.back().low;
    low.wide = wide_;
    low.n = n;
    low.k = k;
  }
  return *by_matrix_[at];
}

void Adapter::change_product(int id, const PackedMatrix& base, const float* base_bias,
                             const LowRankValues& values) {
  LowRank& low = change(id, base.n, base.k).low;
  if (low.rank > 0) throw internal_error("an adapter changes a matrix twice");
  if (values.input_gain != nullptr) {
    merge_product(id, base, values);
  } else {
    low.rank = values.rank;
    low.scale = values.scale;
    low.a = place_rows(values.a, values.rank, base.k, &low.a_stride);
    low.b = place_panels(values.b, base.n, values.rank, values.rank, 1);
  }
  if (values.gain != nullptr) change_gain(id, base, base_bias, values.gain);
}

void Adapter::change_gain(int id, const PackedMatrix& base, const float* base_bias, const float* gain) {
  LowRank& low = change(id, base.n, base.k).low;
  low.factor = padded(base.n, gain, 1.0f);
  if (base_bias == nullptr) return;
  // The kernel scales what the base's product yields, with its bias.
  std::vector<float> shift(static_cast<size_t>(base.n));
  for (int64_t i = 0; i < base.n; ++i) shift[static_cast<size_t>(i)] = base_bias[i] * (1 - gain[i]);
  shift_product(id, base.n, base.k, shift.data());
}

void Adapter::merge_product(int id, const PackedMatrix& base, const LowRankValues& values) {
  const int64_t n = base.n, k = base.k;
  std::vector<float> merged(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n; ++i) {
    float* const row = merged.data() + i * k;
    kernels_.unpack_row(base, i, row);
    for (int64_t r = 0; r < values.rank; ++r) {
      kernels_.add_scaled(row, values.a + r * k, values.scale * values.b[i * values.rank + r], k);
    }
    for (int64_t c = 0; c < k; ++c) row[c] *= values.input_gain[c];
  }
  replace_product(id, n, k, merged.data());
}

void Adapter::shift_product(int id, int64_t n, int64_t k, const float* shift) {
  LowRank& low = change(id, n, k).low;
  if (low.shift == nullptr) {
    low.shift = padded(n, shift, 0.0f);
    return;
  }
  kernels_.add(const_cast<float*>(low.shift), shift, n);
}

void Adapter::replace_product(int id, int64_t n, int64_t k, const float* values) {
  const WeightType type = wide_ ? WeightType::F32 : WeightType::BF16;
  PackedMatrix m{type, act(), n, k, kernels_.panel_bytes(type, act(), k), nullptr};
  const int64_t panels = (n + kPanel - 1) / kPanel;
  uint8_t* const data = place(panels * m.panel_bytes);
  for (int64_t p = 0; p < panels; ++p) {
    kernels_.pack_panel(WeightType::F32, values, type, m.act, p * kPanel, n, k, data + p * m.panel_bytes);
  }
  m.data = data;
  change(id, n, k).replaced = m;
}

void Adapter::change_embedding(int64_t n, int64_t k, const LowRankValues& values) {
  LowRank& low = embedding_.low;
  embeds_ = true;
  low.wide = wide_;
  low.n = k;
  low.k = 0;
  low.rank = values.rank;
  low.scale = values.scale;
  low.b = place_panels(values.a, k, values.rank, 1, k);
  uint8_t* const rows = place(n * values.rank * size());
  store(values.b, n * values.rank, rows);
  embedding_.rows = rows;
  if (values.input_gain != nullptr) low.factor = padded(k, values.input_gain, 1.0f);
  if (values.gain != nullptr) embedding_.gain = padded(n, values.gain, 1.0f);
}

void Adapter::replace_embedding(int64_t n, int64_t k, const float* values) {
  embeds_ = true;
  uint8_t* const data = place(n * k * size());
  store(values, n * k, data);
  embedding_.replaced = data;
}

void Adapter::replace_vector(const float* base, int64_t count, const float* values) {
  vectors_[base] = padded(count, values, 0.0f);
}

void Adapter::embed(int64_t id, int64_t width, float* row) const {
  if (embedding_.replaced != nullptr) {
    kernels_.to_float(wide_ ? WeightType::F32 : WeightType::BF16,
                      embedding_.replaced + id * width * size(), width, row);
  }
  const LowRank& low = embedding_.low;
  if (low.rank == 0) return;
  std::vector<float> made(static_cast<size_t>(low.rank));
  for (int64_t r = 0; r < low.rank; ++r) {
    made[static_cast<size_t>(r)] = low.scale * value_at(embedding_.rows, wide_, id * low.rank + r);
  }
  const int32_t first = 0;
  kernels_.low_rank_up(low, made.data(), &first, 1, 0, 0, (width + kPanel - 1) / kPanel, row, width);
  if (embedding_.gain != nullptr) kernels_.scale(row, embedding_.gain[id], width);
}

void RowAdapters::add(const Adapter* adapter) {
  const auto row = static_cast<int32_t>(of_row_.size());
  of_row_.push_back(adapter);
  if (adapter == nullptr) return;
  const auto known = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Group& g) { return g.adapter == adapter; });
  Group& group = known == groups_.end() ? groups_.emplace_back(Group{adapter, {}}) : *known;
  group.rows.push_back(row);
}

}  // namespace tidemill
