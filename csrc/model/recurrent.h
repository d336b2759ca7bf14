// A mixer with a fixed-size state per sequence: models/spec.py's Recurrent, ready to run.
#pragma once
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/linear.h"

namespace tidemill {

constexpr int64_t kMaxConvKernel = 16;  // of the convolution

struct Recurrent {
  RecurrentShape shape;
  Linear qkv, z, a, b, out;            // b: delta rule only
  std::vector<float> conv;             // [conv_kernel][channels], channel scales folded in
  const float* conv_bias = nullptr;    // or null
  std::vector<float> rate;             // -exp(a_log), per value head
  const float* a_bias = nullptr;
  const float* skip = nullptr;         // per value head, or null
  const float* norm = nullptr;
  std::vector<float> query_scale, key_scale;  // turns rms_norm into an L2 norm
  int64_t state_at = 0;                // offset of this layer in a state, in floats

  int64_t channels() const {
    return 2 * shape.key_heads * shape.key_dim + inner();
  }
  int64_t key_head_of(int64_t value_head) const {
    return shape.tiled ? value_head % shape.key_heads
                       : value_head / (shape.value_heads / shape.key_heads);
  }
  int64_t inner() const { return shape.value_heads * shape.value_dim; }
  // Channel offsets of queries, keys and values: Q, K, V (delta rule) or x, B, C (Mamba-2).
  int64_t value_at() const { return shape.delta ? 2 * shape.key_heads * shape.key_dim : 0; }
  int64_t key_at() const { return shape.delta ? shape.key_heads * shape.key_dim : inner(); }
  int64_t query_at() const {
    return shape.delta ? 0 : inner() + shape.key_heads * shape.key_dim;
  }
  // A layer's state: the convolution's last conv_kernel - 1 inputs, then per value head [key_dim, value_dim].
  int64_t tail_floats() const { return (shape.conv_kernel - 1) * channels(); }
  int64_t head_floats() const { return shape.key_dim * shape.value_dim; }
  int64_t state_floats() const { return tail_floats() + shape.value_heads * head_floats(); }
};

}  // namespace tidemill
