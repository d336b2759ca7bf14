#include "model/recurrent_mixer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace tidemill {

namespace {

// softplus as torch computes it: linear above a threshold.
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Epsilon of the L2 norm of Q and K.
constexpr float kUnitEpsilon = 1e-6f;

unsigned input_acts(const Recurrent& mixer) {
  const unsigned acts = act_bit(mixer.qkv) | act_bit(mixer.z) | act_bit(mixer.a);
  return mixer.b ? acts | act_bit(mixer.b) : acts;
}

}  // namespace

// Offsets of the parts of a token's row in mix_.
struct RecurrentBlock::Layout {
  explicit Layout(const Recurrent& m)
      : raw(0),
        z(round_up(m.channels(), 16)),
        decay(z + round_up(m.inner(), 16)),
        gain(decay + round_up(m.shape.value_heads, 16)),
        mixed(gain + round_up(m.shape.value_heads, 16)),
        out(mixed + round_up(m.channels(), 16)),
        width(row_stride(out + m.inner())) {}
  // Projected channels; gate; per head the state's decay and the value's gain (initially their inputs);
  // convolved channels; output of the recurrence.
  int64_t raw, z, decay, gain, mixed, out, width;
};

void RecurrentBlock::add(const Recurrent& mixer) {
  mix_width_ = std::max(mix_width_, Layout(mixer).width);
  for (const Linear* linear : {&mixer.qkv, &mixer.z, &mixer.a, &mixer.b, &mixer.out}) {
    context_.reads(*linear);
  }
  zero_tail_.resize(std::max(zero_tail_.size(), static_cast<size_t>(mixer.channels())), 0.0f);
}

void RecurrentBlock::begin() {
  if (states().advance(*context_.step)) state_runs_ = StatePool::runs(*context_.step);
}

void RecurrentBlock::run(const Recurrent& mixer, const Norm& norm, float* out) {
  const Layout at(mixer);
  const int64_t tokens = context_.tokens;
  float* const mix = mix_.ensure(tokens * mix_width_);
  stream_.norm_and_pack(norm, input_acts(mixer));
  const Product products[] = {{&mixer.qkv, mix + at.raw, mix_width_, 0, tokens},
                              {&mixer.z, mix + at.z, mix_width_, 0, tokens},
                              {&mixer.a, mix + at.decay, mix_width_, 0, tokens},
                              {&mixer.b, mix + at.gain, mix_width_, 0, tokens}};
  context_.products.multiply(products, mixer.b ? 4 : 3, context_.acts);
  context_.for_each_token(tokens, [&](int64_t t, int) { convolve(mixer, t); });
  const int64_t heads = mixer.shape.value_heads;
  if (Profile* const profile = context_.pool.profile(); profile != nullptr) {
    const int64_t rows = context_.step->rows(), values = mixer.shape.key_dim * mixer.shape.value_dim;
    profile->next({Kernel::Scan, -1, -1, tokens <= Profile::kFewRows,
                   2 * rows * heads * mixer.head_floats() * int64_t{sizeof(float)},
                   2 * tokens * heads * values * (mixer.shape.delta ? 3 : 2)});
  }
  context_.pool.run(context_.step->rows() * heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (const StatePool::Run& run : state_runs_[static_cast<size_t>(i / heads)]) {
        if (i % heads == 0) save_conv_tail(mixer, i / heads, run);
        scan(mixer, i / heads, i % heads, run);
      }
    }
  });
  context_.for_each_token(tokens, [&](int64_t t, int) { gate_row(mixer, t); });
  context_.products.multiply({{&mixer.out, out, stream_.stride(), 0, tokens}}, context_.acts);
}

const float* RecurrentBlock::conv_input_row(const Recurrent& mixer, int64_t r, int64_t back) const {
  const int32_t from = context_.step->states.values[static_cast<size_t>(2 * r)];
  if (from < 0) return zero_tail_.data();
  return states().at(from, mixer.state_at + (mixer.shape.conv_kernel - 1 - back) * mixer.channels());
}

void RecurrentBlock::convolve(const Recurrent& mixer, int64_t t) {
  const RecurrentShape& c = mixer.shape;
  const Layout at(mixer);
  const int64_t r = context_.row_of[static_cast<size_t>(t)];
  const int64_t inside = t - context_.step->row_start[static_cast<size_t>(r)];
  float* const row = mix_.data() + t * mix_width_;
  std::array<const float*, kMaxConvKernel> rows;
  for (int64_t j = 0; j < c.conv_kernel; ++j) {
    const int64_t back = c.conv_kernel - 1 - j;
    rows[static_cast<size_t>(j)] = back <= inside
                                       ? row - back * mix_width_ + at.raw
                                       : conv_input_row(mixer, r, back - inside);
  }
  float* const mixed = row + at.mixed;
  context_.kernels.conv_token(rows.data(), c.conv_kernel, mixer.conv.data(), mixer.conv_bias,
                              mixer.channels(), mixed);
  for (int64_t h = 0; c.delta && h < c.key_heads; ++h) {
    const float eps = kUnitEpsilon / static_cast<float>(c.key_dim);
    float *const q = mixed + mixer.query_at() + h * c.key_dim;
    float *const k = mixed + mixer.key_at() + h * c.key_dim;
    context_.kernels.rms_norm(q, mixer.query_scale.data(), eps, c.key_dim, q);
    context_.kernels.rms_norm(k, mixer.key_scale.data(), eps, c.key_dim, k);
  }
  for (int64_t h = 0; h < c.value_heads; ++h) {
    float &decay = row[at.decay + h], &gain = row[at.gain + h];
    double time = softplus(static_cast<double>(c.a_scale * decay) + mixer.a_bias[h]);
    if (!c.delta) time = std::min<double>(std::max<double>(time, c.time_min), c.time_max);
    decay = static_cast<float>(std::exp(mixer.rate[static_cast<size_t>(h)] * time));
    gain = static_cast<float>(c.delta ? sigmoid(gain) : time);
  }
}

void RecurrentBlock::save_conv_tail(const Recurrent& mixer, int64_t r, const StatePool::Run& run) {
  const int64_t count = run.first + run.count;
  const int64_t end = context_.step->row_start[static_cast<size_t>(r)] + count;
  const int64_t channels = mixer.channels(), kept = mixer.shape.conv_kernel - 1;
  for (int64_t back = kept; back >= 1; --back) {
    const float* from = back <= count ? mix_.data() + (end - back) * mix_width_
                                      : conv_input_row(mixer, r, back - count);
    std::memcpy(states().at(run.to, mixer.state_at + (kept - back) * channels), from,
                static_cast<size_t>(channels) * sizeof(float));
  }
}

void RecurrentBlock::scan(const Recurrent& mixer, int64_t r, int64_t head, const StatePool::Run& run) {
  const RecurrentShape& c = mixer.shape;
  const Layout at(mixer);
  const int64_t key_head = mixer.key_head_of(head);
  const int64_t state_at = mixer.state_at + mixer.tail_floats() + head * mixer.head_floats();
  if (run.count == 0) {
    std::memcpy(states().at(run.to, state_at), states().at(run.from, state_at),
                static_cast<size_t>(mixer.head_floats()) * sizeof(float));
    return;
  }
  const int64_t first = context_.step->row_start[static_cast<size_t>(r)] + run.first;
  float* const row = mix_.data() + first * mix_width_;
  const float* const mixed = row + at.mixed;
  context_.kernels.scan({run.count, c.key_dim, c.value_dim, c.delta,
                         mixed + mixer.query_at() + key_head * c.key_dim,
                         mixed + mixer.key_at() + key_head * c.key_dim,
                         mixed + mixer.value_at() + head * c.value_dim,
                         row + at.decay + head, row + at.gain + head,
                         row + at.out + head * c.value_dim, mix_width_,
                         mixer.skip == nullptr ? 0.0f : mixer.skip[head],
                         run.from < 0 ? nullptr : states().at(run.from, state_at),
                         states().at(run.to, state_at)});
}

void RecurrentBlock::gate_row(const Recurrent& mixer, int64_t t) {
  const RecurrentShape& c = mixer.shape;
  const Layout at(mixer);
  float* const z = mix_.data() + t * mix_width_ + at.z;
  float* const out = mix_.data() + t * mix_width_ + at.out;
  const int64_t inner = mixer.inner();
  if (c.z_scale != 1.0f) context_.kernels.scale(z, c.z_scale, inner);
  const auto gate = [&] { context_.kernels.activate(Activation::Silu, z, out, inner, out); };
  if (c.gate_first) gate();
  const int64_t width = c.norm_groups > 0 ? inner / c.norm_groups : 0;
  for (int64_t g = 0; g < c.norm_groups; ++g) {
    const float* weight = mixer.norm + (c.norm_shared ? 0 : g * width);
    context_.kernels.rms_norm(out + g * width, weight, context_.model.norm_eps, width, out + g * width);
  }
  if (!c.gate_first) gate();
  context_.pack_row(act_bit(mixer.out), out, inner, t, context_.acts);
}

}  // namespace tidemill
