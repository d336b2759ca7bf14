// A mixer with a state of fixed size per sequence: models/spec.py's Recurrent, ready to run.
#pragma once
#include <cstdint>
#include <vector>

#include "linear.h"

namespace tidemill {

constexpr int64_t kMaxTaps = 16;  // of the convolution

struct RecurrentConfig {
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 0;
  bool delta = false;        // the gated delta rule; else Mamba-2's
  int64_t norm_groups = 0;   // parts the output is normed in; 0: no norm
  bool norm_shared = false;  // with the same weights for each part
  bool gate_first = false;   // gated before the norm, not after it
  bool tiled = false;        // value head h goes with key head h % key_heads
  float time_min = 0, time_max = 0;
  float z_scale = 1, x_scale = 1, b_scale = 1, c_scale = 1, a_scale = 1;  // of Mamba-2's projections
};

struct Recurrent {
  RecurrentConfig shape;
  Linear qkv, z, a, b, out;            // b: of the delta rule alone
  std::vector<float> conv;             // [taps][channels], with what scales the channels
  const float* conv_bias = nullptr;    // or null
  std::vector<float> rate;             // -exp(a_log), per value head
  const float* a_bias = nullptr;
  const float* skip = nullptr;         // per value head, or null
  const float* norm = nullptr;
  std::vector<float> query_scale, key_scale;  // what makes rms_norm a norm to unit length
  int64_t state_at = 0;                // of this layer in a state, in floats

  int64_t channels() const {
    return 2 * shape.key_heads * shape.key_dim + inner();
  }
  int64_t key_head_of(int64_t value_head) const {
    return shape.tiled ? value_head % shape.key_heads
                       : value_head / (shape.value_heads / shape.key_heads);
  }
  int64_t inner() const { return shape.value_heads * shape.value_dim; }
  // Where queries, keys and values begin among the channels: Q, K, V; or x, B, C.
  int64_t value_at() const { return shape.delta ? 2 * shape.key_heads * shape.key_dim : 0; }
  int64_t key_at() const { return shape.delta ? shape.key_heads * shape.key_dim : inner(); }
  int64_t query_at() const {
    return shape.delta ? 0 : inner() + shape.key_heads * shape.key_dim;
  }
  // A state of the layer: the convolution's last taps - 1 inputs, then per value head
  // [key_dim, value_dim].
  int64_t tail_floats() const { return (shape.taps - 1) * channels(); }
  int64_t head_floats() const { return shape.key_dim * shape.value_dim; }
  int64_t state_floats() const { return tail_floats() + shape.value_heads * head_floats(); }
};

}  // namespace tidemill
