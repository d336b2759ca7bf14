// Elementwise kernels, one row at a time. Sums use kLanes lane accumulators in ascending order and one
// fixed reduction tree, so a row's result depends on the row alone.

// exp(x) to about 1 ulp: Cody-Waite reduction and the degree-5 minimax polynomial of Cephes expf. NaN
// stays NaN. Subnormal results are exactly 0: one subnormal lane (an unseen position, for example)
// makes an instruction take 180 cycles instead of 7 on Intel cores.
static inline Vf vexp(Vf x) {
  constexpr float kLeast = -87.33f;
  const Vf of = x;
  x = vmin(vset(88.8f), x);
  x = vmax(vset(kLeast), x);
  const Vf n = vround_float(vmul(x, vset(1.44269504088896341f)));
  Vf r = vfma(n, vset(-0.693359375f), x);
  r = vfma(n, vset(2.12194440e-4f), r);
  Vf p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  const Vf y = vadd(vfma(vmul(r, r), p, r), vset(1.0f));
  return vzero_below(vscale2(y, n), of, kLeast);
}

// Scalar version with the same operations, so that scalars and lanes agree bit for bit.
static inline float exp_scalar(float x) {
  float out[kLanes];
  vstore(out, vexp(vset(x)));
  return out[0];
}

static void to_float(WeightType from, const void* source, int64_t count, float* out) {
  const uint8_t* bytes = static_cast<const uint8_t*>(source);
  const uint16_t* halves = static_cast<const uint16_t*>(source);
  const int64_t whole = count / kLanes * kLanes;
  switch (from) {
    case WeightType::F32:
      __builtin_memcpy(out, source, size_t(count) * 4);
      return;
    case WeightType::F16:
      for (int64_t i = 0; i < whole; i += kLanes) vstore(out + i, vload_half(halves + i));
      for (int64_t i = whole; i < count; ++i)
        out[i] = half_to_float(load_as<uint16_t>(bytes + 2 * i));
      return;
    case WeightType::BF16:
      for (int64_t i = 0; i < whole; i += kLanes) vstore(out + i, vload_bf16(halves + i));
      for (int64_t i = whole; i < count; ++i)
        out[i] = bf16_to_float(load_as<uint16_t>(bytes + 2 * i));
      return;
    case WeightType::Q8_0:
      for (int64_t b = 0; b < count / 32; ++b, bytes += 34) {
        const float d = half_to_float(load_as<uint16_t>(bytes));
        for (int j = 0; j < 32; ++j) out[32 * b + j] = d * float(int8_t(bytes[2 + j]));
      }
      return;
    case WeightType::MXFP4:
    case WeightType::IQ4_NL:
      for (int64_t b = 0; b < count / 32; ++b, bytes += code_block_bytes(from)) {
        const float d = code_scale(from, code_scale_bits(from, bytes));
        const uint8_t* nibbles = bytes + code_block_bytes(from) - 16;
        for (int j = 0; j < 16; ++j) {
          out[32 * b + j] = d * float(code_values(from).at[nibbles[j] & 15]);
          out[32 * b + 16 + j] = d * float(code_values(from).at[nibbles[j] >> 4]);
        }
      }
      return;
    case WeightType::Q4_0:
      for (int64_t b = 0; b < count / 32; ++b, bytes += 18) {
        const float d = half_to_float(load_as<uint16_t>(bytes));
        for (int j = 0; j < 16; ++j) {
          out[32 * b + j] = d * float(int(bytes[2 + j] & 15) - 8);
          out[32 * b + 16 + j] = d * float(int(bytes[2 + j] >> 4) - 8);
        }
      }
      return;
    case WeightType::Q4_K:
    case WeightType::Q5_K:
    case WeightType::Q6_K:
      for (int64_t b = 0; b < count / kBlock; ++b, bytes += k_block_bytes(from)) {
        KBlock block;
        read_k_block(from, bytes, block);
        for (int i = 0; i < kBlock; ++i) out[kBlock * b + i] = block.value(from, i);
      }
      return;
    case WeightType::Q4_1:
    case WeightType::Q5_0:
    case WeightType::Q5_1:
      for (int64_t b = 0; b < count / kGroup; ++b, bytes += legacy_block_bytes(from)) {
        LegacyBlock block;
        read_legacy_block(from, bytes, block);
        for (int i = 0; i < kGroup; ++i) out[kGroup * b + i] = block.value(from, i);
      }
      return;
    case WeightType::I8:  // scales are per row: see unpack_row
      return;
  }
}

static void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  Vf sum = vzero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vf v = n - i >= kLanes ? vload(x + i) : vload_n(x + i, n - i);
    sum = vfma(v, v, sum);
  }
  const float mean = vreduce_add(sum) / float(n);
  const Vf scale = vset(1.0f / __builtin_sqrtf(mean + eps));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vstore(out + i, vmul(vload(weight + i), vmul(vload(x + i), scale)));
  if (i < n) {
    const Vf v = vmul(vload_n(weight + i, n - i), vmul(vload_n(x + i, n - i), scale));
    vstore_n(out + i, v, n - i);
  }
}

// Squares deviations from the mean, which avoids cancellation.
static void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                       float* out) {
  Vf sum = vzero();
  for (int64_t i = 0; i < n; i += kLanes)
    sum = vadd(sum, n - i >= kLanes ? vload(x + i) : vload_n(x + i, n - i));
  const Vf mean = vset(vreduce_add(sum) / float(n));
  Vf squares = vzero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vf d = keep_range(vsub(vload_n(x + i, n - i), mean), i, 0, n, 0.0f);
    squares = vfma(d, d, squares);
  }
  const Vf scale = vset(1.0f / __builtin_sqrtf(vreduce_add(squares) / float(n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const Vf normed = vmul(vsub(vload_n(x + i, left), mean), scale);
    const Vf v = vmul(vload_n(weight + i, left), normed);
    vstore_n(out + i, bias ? vadd(v, vload_n(bias + i, left)) : v, left);
  }
}

static void add_rows(float* x, const float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vstore(x + i, vadd(vload(x + i), vload(y + i)));
  if (i < n) vstore_n(x + i, vadd(vload_n(x + i, n - i), vload_n(y + i, n - i)), n - i);
}

static void add_scaled(float* x, const float* y, float scale, int64_t n) {
  const Vf s = vset(scale);
  for (int64_t i = 0; i < n; i += kLanes)
    vstore_n(x + i, vadd(vload_n(x + i, n - i), vmul(vload_n(y + i, n - i), s)), n - i);
}

static void scale_row(float* x, float scale, int64_t n) {
  const Vf s = vset(scale);
  for (int64_t i = 0; i < n; i += kLanes) vstore_n(x + i, vmul(vload_n(x + i, n - i), s), n - i);
}

static void clamp_row(float* x, float limit, int64_t n) {
  const Vf low = vset(-limit), high = vset(limit);
  for (int64_t i = 0; i < n; i += kLanes)
    vstore_n(x + i, vmax(low, vmin(high, vload_n(x + i, n - i))), n - i);
}

// tanh through exp, to about 1e-7 of its range.
static inline Vf vtanh(Vf x) {
  const Vf e = vexp(vadd(x, x));
  return vsub(vset(1.0f), vdiv(vset(2.0f), vadd(e, vset(1.0f))));
}

static inline Vf capped(Vf x, Vf cap) { return vmul(cap, vtanh(vdiv(x, cap))); }

static void softcap_row(float* x, float cap, int64_t n) {
  const Vf c = vset(cap);
  for (int64_t i = 0; i < n; i += kLanes) vstore_n(x + i, capped(vload_n(x + i, n - i), c), n - i);
}

static inline Vf sigmoid(Vf x) {
  return vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vzero(), x))));
}

static inline Vf silu(Vf gate) {
  return vdiv(gate, vadd(vset(1.0f), vexp(vsub(vzero(), gate))));
}

// x * Phi(x), with erf by Abramowitz & Stegun 7.1.26 (absolute error 1.5e-7).
static inline Vf gelu(Vf x) {
  const Vf z = vmul(x, vset(0.70710678118654752f));
  const Vf a = vmax(z, vsub(vzero(), z));
  const Vf t = vdiv(vset(1.0f), vfma(vset(0.3275911f), a, vset(1.0f)));
  Vf p = vset(1.061405429f);
  p = vfma(p, t, vset(-1.453152027f));
  p = vfma(p, t, vset(1.421413741f));
  p = vfma(p, t, vset(-0.284496736f));
  p = vfma(p, t, vset(0.254829592f));
  // erfc(a) / 2: the weight of the other side.
  const Vf half = vmul(vset(0.5f), vmul(vmul(p, t), vexp(vsub(vzero(), vmul(a, a)))));
  const Vf positive = vmax(x, vzero());
  // x > 0: x (1 - half); x < 0: x half. Both are max(x, 0) - |x| half.
  return vsub(positive, vmul(vmax(x, vsub(vzero(), x)), half));
}

// x / 2 (1 + tanh(u)) is x * sigmoid(2u).
static inline Vf gelu_tanh(Vf x) {
  const Vf cube = vmul(vmul(x, x), x);
  const Vf u = vmul(vset(1.5957691216057308f), vfma(vset(0.044715f), cube, x));
  return vmul(x, sigmoid(u));
}

template <class F>
static inline void activate_with(const float* gate, const float* up, int64_t n, float* out, F f) {
  if (up == nullptr) {
    for (int64_t i = 0; i < n; i += kLanes) vstore_n(out + i, f(vload_n(gate + i, n - i)), n - i);
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vstore(out + i, vmul(f(vload(gate + i)), vload(up + i)));
  if (i < n)
    vstore_n(out + i, vmul(f(vload_n(gate + i, n - i)), vload_n(up + i, n - i)), n - i);
}

static void swiglu_clamped(const float* gate, const float* up, int64_t n, float* out) {
  const Vf limit = vset(7.0f), low = vset(-7.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vf g = vmin(limit, vload_n(gate + i, n - i));
    const Vf u = vmax(low, vmin(limit, vload_n(up + i, n - i)));
    const Vf glu = vmul(g, sigmoid(vmul(g, vset(1.702f))));
    vstore_n(out + i, vmul(vadd(u, vset(1.0f)), glu), n - i);
  }
}

static void activate(Activation act, const float* gate, const float* up, int64_t n, float* out) {
  switch (act) {
    case Activation::Silu:
      return activate_with(gate, up, n, out, [](Vf x) { return silu(x); });
    case Activation::Gelu:
      return activate_with(gate, up, n, out, [](Vf x) { return gelu(x); });
    case Activation::GeluTanh:
      return activate_with(gate, up, n, out, [](Vf x) { return gelu_tanh(x); });
    case Activation::Relu:
      return activate_with(gate, up, n, out, [](Vf x) { return vmax(x, vzero()); });
    case Activation::Relu2:
      return activate_with(gate, up, n, out, [](Vf x) {
        const Vf positive = vmax(x, vzero());
        return vmul(positive, positive);
      });
    case Activation::SwigluClamped:
      return swiglu_clamped(gate, up, n, out);
    case Activation::Sigmoid:
      return activate_with(gate, up, n, out, [](Vf x) { return sigmoid(x); });
  }
}

static void rope(float* x, int64_t heads, int64_t head_dim, int64_t dim, const float* cos_sin) {
  const int64_t half = dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    float* first = x + h * head_dim;
    float* second = first + half;
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t n = half - i;
      const Vf a = vload_n(first + i, n), b = vload_n(second + i, n);
      const Vf c = vload_n(cos_sin + i, n), s = vload_n(cos_sin + half + i, n);
      vstore_n(first + i, vsub(vmul(a, c), vmul(b, s)), n);
      vstore_n(second + i, vadd(vmul(b, c), vmul(a, s)), n);
    }
  }
}

static float max_value(const float* x, int64_t n) {
  Vf best = vset(-kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = vmax(best, vload(x + i));
  if (i < n) best = vmax(best, keep_range(vload_n(x + i, n - i), 0, 0, n - i, -kInfinity));
  return vreduce_max(best);
}

static double sum_exp(const float* x, int64_t n, float max) {
  constexpr int64_t kChunk = 512;
  float e[kChunk];
  double lanes[16] = {};
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = min64(kChunk, n - i);
    for (int64_t j = 0; j < count; j += kLanes) {
      const Vf v = vexp(vsub(vload_n(x + i + j, count - j), vset(max)));
      vstore(e + j, keep_range(v, j, 0, count, 0.0f));
    }
    for (int64_t j = round_up(count, kLanes); j < kChunk; ++j) e[j] = 0.0f;
    for (int64_t j = 0; j < kChunk; j += 16)
      for (int l = 0; l < 16; ++l) lanes[l] += double(e[j + l]);
  }
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}
