#include "check.h"

namespace tidemill::check {
namespace {

void close_to(const KernelTable& t, const char* what, int64_t i, double got, double want,
              double tolerance) {
  if (!(std::fabs(got - want) <= tolerance))
    fail(t.isa, what, "at %lld: got %.9g, want %.9g", (long long)i, got, want);
}

void sizes_of_rows(const KernelTable& t, int64_t n, Random& random) {
  std::vector<float> x(n), y(n), out(n + 1, NAN);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = random.normal() * 8;
    y[i] = random.normal();
  }
  double squares = 0;
  for (float v : x) squares += double(v) * v;
  t.rms_norm(x.data(), y.data(), 1e-6f, n, out.data());
  const double scale = 1 / std::sqrt(squares / n + 1e-6);
  for (int64_t i = 0; i < n; ++i)
    close_to(t, "rms_norm", i, out[i], x[i] * scale * y[i], 2e-6 * std::fabs(x[i]));
  if (!std::isnan(out[n])) fail(t.isa, "rms_norm", "writes past n=%lld", (long long)n);

  t.activate(Activation::Silu, x.data(), y.data(), n, out.data());
  for (int64_t i = 0; i < n; ++i) {
    const double want = x[i] / (1 + std::exp(-double(x[i]))) * y[i];
    close_to(t, "silu_mul", i, out[i], want, 1e-6 * std::fabs(want) + 1e-30);
  }
  if (!std::isnan(out[n])) fail(t.isa, "silu_mul", "writes past n=%lld", (long long)n);

  std::vector<float> sum(x);
  sum.push_back(NAN);
  t.add(sum.data(), y.data(), n);
  for (int64_t i = 0; i < n; ++i)
    if (sum[i] != x[i] + y[i]) fail(t.isa, "add", "at %lld", (long long)i);
  if (!std::isnan(sum[n])) fail(t.isa, "add", "writes past n=%lld", (long long)n);

  float largest = x[0];
  for (float v : x) largest = std::fmax(largest, v);
  if (t.max_value(x.data(), n) != largest) fail(t.isa, "max_value", "n=%lld", (long long)n);
  double total = 0;
  for (float v : x) total += std::exp(double(v) - largest);
  close_to(t, "sum_exp", n, t.sum_exp(x.data(), n, largest), total, 3e-7 * total);
}

double reference_activation(Activation act, double x) {
  switch (act) {
    case Activation::Silu: return x / (1 + std::exp(-x));
    case Activation::Gelu: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::GeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::Relu: return std::fmax(x, 0);
    case Activation::Relu2: return std::fmax(x, 0) * std::fmax(x, 0);
    case Activation::SwigluClamped: break;
    case Activation::Sigmoid: return 1 / (1 + std::exp(-x));
  }
  return NAN;
}

void activations_of(const KernelTable& t, int64_t n, Random& random) {
  std::vector<float> x(n), y(n), out(n + 1, NAN);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = random.normal() * 6;
    y[i] = random.normal() * 6;
  }
  for (int act = 0; act < int(Activation::SwigluClamped); ++act) {
    t.activate(Activation(act), x.data(), nullptr, n, out.data());
    for (int64_t i = 0; i < n; ++i) {
      const double want = reference_activation(Activation(act), x[i]);
      close_to(t, "activate", 100 * act + i, out[i], want, 1e-6 * (1 + std::fabs(x[i])) *
                                                              (1 + std::fabs(want)));
    }
  }
  t.activate(Activation::Sigmoid, x.data(), y.data(), n, out.data());
  for (int64_t i = 0; i < n; ++i) {
    close_to(t, "sigmoid", i, out[i], reference_activation(Activation::Sigmoid, x[i]) * y[i], 6e-6);
  }
  t.activate(Activation::SwigluClamped, x.data(), y.data(), n, out.data());
  for (int64_t i = 0; i < n; ++i) {
    const double g = std::fmin(x[i], 7), u = std::fmax(-7, std::fmin(y[i], 7));
    const double want = g / (1 + std::exp(-1.702 * g)) * (u + 1);
    close_to(t, "swiglu_clamped", i, out[i], want, 1e-6 * (1 + std::fabs(want)));
  }
  if (!std::isnan(out[n])) fail(t.isa, "activate", "writes past n=%lld", (long long)n);
}

void norms_and_caps_of(const KernelTable& t, int64_t n, Random& random) {
  std::vector<float> x(n), w(n), b(n), out(n + 1, NAN);
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = random.normal() * 3 + 5;
    w[i] = random.normal();
    b[i] = random.normal();
    mean += x[i] / double(n);
  }
  for (float v : x) variance += (v - mean) * (v - mean) / double(n);
  t.layer_norm(x.data(), w.data(), b.data(), 1e-5f, n, out.data());
  for (int64_t i = 0; i < n; ++i) {
    const double width = std::sqrt(variance + 1e-5);
    close_to(t, "layer_norm", i, out[i], (x[i] - mean) / width * w[i] + b[i],
             4e-6 * (1 + std::fabs(x[i]) / width) * (1 + std::fabs(w[i])));
  }
  if (!std::isnan(out[n])) fail(t.isa, "layer_norm", "writes past n=%lld", (long long)n);
  std::vector<float> capped(x), clamped(x), scaled(x), sum(x);
  t.softcap(capped.data(), 4.0f, n);
  t.clamp(clamped.data(), 2.5f, n);
  t.scale(scaled.data(), 0.3f, n);
  t.add_scaled(sum.data(), w.data(), 0.3f, n);
  for (int64_t i = 0; i < n; ++i) {
    close_to(t, "softcap", i, capped[i], 4 * std::tanh(x[i] / 4.0), 2e-6);
    close_to(t, "clamp", i, clamped[i], std::fmax(-2.5, std::fmin(x[i], 2.5)), 0);
    close_to(t, "scale", i, scaled[i], x[i] * 0.3f, 0);
    close_to(t, "add_scaled", i, sum[i], x[i] + w[i] * 0.3f, 0);
  }
}

void rope_of(const KernelTable& t, int64_t heads, int64_t d, int64_t dim, Random& random) {
  std::vector<float> x(heads * d), table(dim);
  for (float& v : x) v = random.normal();
  for (int64_t i = 0; i < dim / 2; ++i) {
    table[i] = std::cos(0.7f * i + 1);
    table[dim / 2 + i] = std::sin(0.7f * i + 1);
  }
  std::vector<float> got(x);
  t.rope(got.data(), heads, d, dim, table.data());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < d; ++i) {
      double want = x[h * d + i];
      const int64_t half = dim / 2;
      if (i < half)
        want = double(x[h * d + i]) * table[i] - double(x[h * d + half + i]) * table[half + i];
      else if (i < dim)
        want = double(x[h * d + i]) * table[i - half] + double(x[h * d + i - half]) * table[i];
      close_to(t, "rope", i, got[h * d + i], want, 1e-6);
    }
  }
}

void conversions(const KernelTable& t) {
  for (uint32_t h = 0; h < 65536; h += 7) {
    uint16_t bits[19];
    float out[19];
    for (auto& b : bits) b = uint16_t(h);
    t.to_float(WeightType::F16, bits, 19, out);
    const int exponent = (h >> 10) & 31;
    double want = exponent ? std::ldexp(1024 + (h & 1023), exponent - 25)
                           : std::ldexp(h & 1023, -24);
    if (h & 0x8000) want = -want;
    for (float v : out)
      if (exponent == 31 ? std::isfinite(v) : v != want)
        fail(t.isa, "to_float f16", "%04x gives %g, want %g", h, v, want);
    t.to_float(WeightType::BF16, bits, 19, out);
    for (float v : out) {
      const float expected = bf16_value(uint16_t(h));
      if (v != expected && !(std::isnan(v) && std::isnan(expected)))
        fail(t.isa, "to_float bf16", "%04x gives %g", h, v);
    }
  }
}

void exponentials(const KernelTable& t) {
  // sum_exp of one value is exp itself.
  double worst = 0;
  for (double x = -87; x < 88; x += 0.00717) {
    const float value = float(x);
    const double got = t.sum_exp(&value, 1, 0.0f), want = std::exp(double(value));
    worst = std::fmax(worst, std::fabs(got - want) / want);
  }
  if (worst > 2.5e-7) fail(t.isa, "exp", "relative error %g", worst);
  const float edge[] = {-INFINITY, -1000.0f, -104.5f};
  for (float x : edge)
    if (t.sum_exp(&x, 1, 0.0f) != 0.0) fail(t.isa, "exp", "exp(%g) is not 0", x);
  const float nan = NAN, big = 200.0f;
  if (!std::isnan(t.sum_exp(&nan, 1, 0.0f))) fail(t.isa, "exp", "a NaN is lost");
  if (!std::isinf(t.sum_exp(&big, 1, 0.0f))) fail(t.isa, "exp", "no overflow");
}

}  // namespace

void check_elementwise(const KernelTable& t) {
  Random random{11};
  for (int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 513, 1031}) {
    sizes_of_rows(t, n, random);
    activations_of(t, n, random);
    norms_and_caps_of(t, n, random);
  }
  rope_of(t, 3, 128, 128, random);
  rope_of(t, 2, 24, 24, random);
  rope_of(t, 5, 80, 32, random);
  rope_of(t, 1, 2, 2, random);
  conversions(t);
  exponentials(t);
}

}  // namespace tidemill::check
