// Building blocks of layers: affine products and norms.
#pragma once
#include "kernels/kernels.h"

namespace tidemill {

struct Linear {
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // padded to whole panels, or null
  int id = -1;                  // of the weight: adapters name matrices by it
  explicit operator bool() const { return weight != nullptr; }
};

// The activation type that a product reads, as a bit in a set.
inline unsigned act_bit(const Linear& linear) {
  return 1u << static_cast<int>(linear.weight->act);
}

struct Norm {
  const float* weight = nullptr;  // null: no norm
  const float* bias = nullptr;
  explicit operator bool() const { return weight != nullptr; }
};

}  // namespace tidemill
