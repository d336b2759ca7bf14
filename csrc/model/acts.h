// Rows of activations, packed for the products that read them.
#pragma once
#include <cstdint>

#include "kernels/kernels.h"
#include "memory/memory.h"
#include "model/adapters.h"

namespace tidemill {

// Runs body(type) for every activation type of a set (act_bit).
template <class Body>
void for_each_act(unsigned types, Body&& body) {
  for (int act = 0; act < kActTypes; ++act) {
    if (types >> act & 1u) body(act);
  }
}

// Per activation type an array of packed rows.
struct Acts {
  Buffer<uint8_t> rows[kActTypes];
  int64_t stride[kActTypes] = {};
  // The adapters of the rows, set before rows are packed; null: no row of the step has one.
  const RowAdapters* adapters = nullptr;

  // Rows hold up to k values.
  void set_width(const KernelTable& kernels, int64_t k) {
    for (int act = 0; act < kActTypes; ++act) {
      stride[act] = kernels.act_row_bytes(static_cast<ActType>(act), k);
    }
  }
  void ensure(unsigned types, int64_t count) {
    for_each_act(types | adapter_types(), [&](int act) { rows[act].ensure(count * stride[act]); });
  }
  // The type that adapters' products read, as a set; it is packed of the rows that have one.
  unsigned adapter_types() const {
    return adapters == nullptr ? 0u : 1u << static_cast<int>(adapters->groups().front().adapter->act());
  }
  unsigned adapter_types_of(int64_t row) const {
    return adapters == nullptr || adapters->of(row) == nullptr ? 0u : adapter_types();
  }
  uint8_t* row(int act, int64_t index) const { return rows[act].data() + index * stride[act]; }
};

}  // namespace tidemill
