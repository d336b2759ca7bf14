#include "check.h"

namespace tidemill::check {
namespace {

// A row-major matrix in a source type and the exact values of its bytes; for each value the magnitude
// of cancelling terms (which determines rounding errors), and its value when dequantized to bf16:
// computed with 11 bits, then rounded to 8.
struct Source {
  WeightType type;
  std::vector<uint8_t> bytes;
  std::vector<double> values, sizes, wide;
};

// Rounds to this many significant bits, to nearest; ties to even or away from zero.
double significant(double x, int bits, bool away) {
  if (x == 0) return 0;
  int exponent;
  const double scaled = std::ldexp(std::frexp(x, &exponent), bits);
  return std::ldexp(away ? std::round(scaled) : std::nearbyint(scaled), exponent - bits);
}
double half_precise(double x) { return significant(x, 11, false); }
// The value of a weight scale * q - offset.
double dequantized(double scale, int q, double offset) {
  return significant(half_precise(half_precise(scale) * q - half_precise(offset)), 8, true);
}

bool k_type(WeightType type) {
  return type == WeightType::Q4_K || type == WeightType::Q5_K || type == WeightType::Q6_K;
}

#ifdef __aarch64__
using Half = __fp16;  // GCC 12 lacks the other name in C++
#else
using Half = _Float16;
#endif

uint16_t half_bits(float x) {  // through the compiler's own conversion
  const Half h = Half(x);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
float half_value(uint16_t bits) {
  Half h;
  std::memcpy(&h, &bits, 2);
  return float(h);
}

void append(std::vector<uint8_t>& out, const void* data, size_t size) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  out.insert(out.end(), p, p + size);
}

// GGUF's reference quantizers, written from the format's description.
void quantize_group(WeightType type, const float* x, Source& out) {
  float largest = 0, signed_largest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > largest) {
      largest = std::fabs(x[i]);
      signed_largest = x[i];
    }
  }
  const float d = type == WeightType::Q8_0 ? largest / 127.0f : signed_largest / -8.0f;
  const float inverse = d ? 1.0f / d : 0.0f;
  const uint16_t scale = half_bits(d);
  append(out.bytes, &scale, 2);
  if (type == WeightType::Q8_0) {
    for (int i = 0; i < 32; ++i) {
      const int8_t q = int8_t(std::round(x[i] * inverse));
      append(out.bytes, &q, 1);
      out.values.push_back(double(half_value(scale)) * q);
      out.wide.push_back(dequantized(half_value(scale), q, 0));
    }
    return;
  }
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = std::min(15, int(x[i] * inverse + 8.5f));
  for (int i = 0; i < 16; ++i) {
    const uint8_t byte = uint8_t(q[i] | q[16 + i] << 4);
    append(out.bytes, &byte, 1);
  }
  for (int v : q) out.values.push_back(double(half_value(scale)) * (v - 8));
  for (int v : q) out.wide.push_back(dequantized(half_value(scale), v - 8, 0));
}

// A block of a K type with random scales, minima and values, laid out from the format's description.
// zero: d and dmin as a quantizer writes them for zeros; largest: all integers at their extremes, so
// that a block's sum is a multiple of 256 and exact.
void random_k_block(WeightType type, Random& random, bool zero, bool largest, Source& out) {
  const bool six = type == WeightType::Q6_K;
  const uint16_t d = half_bits(zero ? 0 : largest ? 1.0f : random.uniform() * 0.01f);
  const uint16_t dmin = half_bits(zero ? 0 : largest ? 1.0f : random.uniform() * 0.02f);
  const int top = type == WeightType::Q4_K ? 15 : type == WeightType::Q5_K ? 31 : 63;
  int q[256], scale[16], minimum[8];
  for (int i = 0; i < 256; ++i)
    q[i] = largest ? (six ? 0 : top) : int(random.below(top + 1));
  for (int i = 0; i < 16; ++i) {
    const int most = six ? 256 : 64;
    scale[i] = int(random.below(most)) - (six ? 128 : 0);
    if (largest) scale[i] = six ? -128 : 63;
  }
  for (int i = 0; i < 8; ++i) minimum[i] = largest ? 63 : int(random.below(64));
  for (int i = 0; i < 256; ++i) {
    const float f = half_value(d) * float(scale[six ? i / 16 : i / 32]);
    const float product = f * float(six ? q[i] - 32 : q[i]);
    const float offset = six ? 0.0f : half_value(dmin) * float(minimum[i / 32]);
    out.values.push_back(product - offset);
    out.sizes.push_back(std::fabs(f * float(q[i])) + std::fabs(offset));
    out.wide.push_back(dequantized(f, six ? q[i] - 32 : q[i], offset));
  }
  std::vector<uint8_t> low(128), high(64), packed(12), fifth(32);
  for (int i = 0; i < 256; ++i) {
    if (six) {  // 128 values share 64 bytes of nibbles and 32 of bit pairs
      const int half = i / 128, at = i % 128;
      low[64 * half + at % 64] |= uint8_t((q[i] & 15) << (at < 64 ? 0 : 4));
      high[32 * half + at % 32] |= uint8_t((q[i] >> 4) << (2 * (at / 32)));
    } else {
      low[i / 64 * 32 + i % 32] |= uint8_t((q[i] & 15) << (i % 64 < 32 ? 0 : 4));
      fifth[i % 32] |= uint8_t((q[i] >> 4) << (i / 32));
    }
  }
  if (six) {
    append(out.bytes, low.data(), 128);
    append(out.bytes, high.data(), 64);
    for (int i = 0; i < 16; ++i) {
      const int8_t s = int8_t(scale[i]);
      append(out.bytes, &s, 1);
    }
    append(out.bytes, &d, 2);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    packed[j] = uint8_t(scale[j] | scale[j + 4] >> 4 << 6);
    packed[j + 4] = uint8_t(minimum[j] | minimum[j + 4] >> 4 << 6);
    packed[j + 8] = uint8_t((scale[j + 4] & 15) | (minimum[j + 4] & 15) << 4);
  }
  append(out.bytes, &d, 2);
  append(out.bytes, &dmin, 2);
  append(out.bytes, packed.data(), 12);
  if (type == WeightType::Q5_K) append(out.bytes, fifth.data(), 32);
  append(out.bytes, low.data(), 128);
}

bool code_type(WeightType type) { return type == WeightType::MXFP4 || type == WeightType::IQ4_NL; }

// The value of an e2m1 number, from its definition: sign, two bits of exponent, one of mantissa.
double e2m1(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double size = exponent ? std::ldexp(1 + 0.5 * mantissa, exponent - 1) : 0.5 * mantissa;
  return code & 8 ? -size : size;
}

constexpr int kIq4Steps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

// A block of 32 random codes. Exponents of MXFP4 exceed the range of a half in both directions.
void random_code_block(WeightType type, Random& random, Source& out) {
  const bool mx = type == WeightType::MXFP4;
  const uint8_t exponent = uint8_t(random.below(8) ? 100 + random.below(40) : 1 + random.below(160));
  const uint16_t half = half_bits(random.uniform() * 0.1f);
  if (mx) append(out.bytes, &exponent, 1);
  if (!mx) append(out.bytes, &half, 2);
  int codes[32];
  for (int& code : codes) code = int(random.below(16));
  for (int i = 0; i < 16; ++i) {
    const uint8_t byte = uint8_t(codes[i] | codes[16 + i] << 4);
    append(out.bytes, &byte, 1);
  }
  for (int code : codes) {
    out.values.push_back(mx ? std::ldexp(e2m1(code), exponent - 127)
                            : double(half_value(half)) * kIq4Steps[code]);
    out.wide.push_back(mx ? 0 : dequantized(half_value(half), kIq4Steps[code], 0));
  }
}

bool legacy_type(WeightType type) {
  return type == WeightType::Q4_1 || type == WeightType::Q5_0 || type == WeightType::Q5_1;
}

// A block of 32 codes with these factors, laid out from the format's description.
void legacy_block(WeightType type, float scale, float offset, const int (&q)[32], Source& out) {
  const bool five = type != WeightType::Q4_1, minimum = type != WeightType::Q5_0;
  const uint16_t d = half_bits(scale), m = half_bits(minimum ? offset : 0);
  append(out.bytes, &d, 2);
  if (minimum) append(out.bytes, &m, 2);
  uint32_t fifth = 0;
  for (int i = 0; i < 32; ++i) fifth |= uint32_t(q[i] >> 4) << i;
  if (five) append(out.bytes, &fifth, 4);
  for (int i = 0; i < 16; ++i) {
    const uint8_t byte = uint8_t((q[i] & 15) | (q[16 + i] & 15) << 4);
    append(out.bytes, &byte, 1);
  }
  for (int code : q) {
    const int value = minimum ? code : code - 16;
    out.values.push_back(half_value(d) * float(value) + half_value(m));
    out.sizes.push_back(std::fabs(half_value(d) * float(code)) + std::fabs(half_value(m)));
    out.wide.push_back(dequantized(half_value(d), value, -double(half_value(m))));
  }
}

void random_legacy_block(WeightType type, Random& random, Source& out) {
  int q[32];
  for (int& code : q) code = int(random.below(type == WeightType::Q4_1 ? 16 : 32));
  const bool zero = random.below(8) == 0;
  legacy_block(type, zero ? 0 : random.uniform() * 0.1f, zero ? 0 : random.normal() * 0.3f, q, out);
}

// An int8 row after its float scale.
void quantize_row(const float* x, int64_t k, Source& out) {
  float largest = 0;
  for (int64_t i = 0; i < k; ++i) largest = std::fmax(largest, std::fabs(x[i]));
  const float d = largest / 127.0f, inverse = d ? 1.0f / d : 0.0f;
  append(out.bytes, &d, 4);
  for (int64_t i = 0; i < k; ++i) {
    const int8_t q = int8_t(std::round(x[i] * inverse));
    append(out.bytes, &q, 1);
    out.values.push_back(double(d * float(q)));
  }
}

Source make_source(WeightType type, const std::vector<float>& x, int64_t k, Random& random) {
  Source out{type, {}, {}, {}, {}};
  if (type == WeightType::I8) {
    for (size_t i = 0; i < x.size(); i += size_t(k)) quantize_row(&x[i], k, out);
    for (double v : out.values) out.sizes.push_back(std::fabs(v));
    return out;
  }
  if (code_type(type)) {
    for (size_t i = 0; i < x.size(); i += 32) random_code_block(type, random, out);
    for (double v : out.values) out.sizes.push_back(std::fabs(v));
    return out;
  }
  if (legacy_type(type)) {
    for (size_t i = 0; i < x.size(); i += 32) random_legacy_block(type, random, out);
    return out;
  }
  if (k_type(type)) {
    for (size_t i = 0; i < x.size(); i += 256)
      random_k_block(type, random, random.below(8) == 0, false, out);
    return out;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (type == WeightType::Q8_0 || type == WeightType::Q4_0) {
      if (i % 32 == 0) quantize_group(type, &x[i], out);
    } else if (type == WeightType::F32) {
      append(out.bytes, &x[i], 4);
      out.values.push_back(x[i]);
    } else {
      const bool half = type == WeightType::F16;
      const uint16_t bits = half ? half_bits(x[i]) : bf16_bits(x[i]);
      append(out.bytes, &bits, 2);
      out.values.push_back(half ? half_value(bits) : bf16_value(bits));
    }
  }
  for (double v : out.values) out.sizes.push_back(std::fabs(v));
  return out;
}

// The values that a packed activation row represents.
std::vector<double> rounded_act(ActType act, const float* x, int64_t k) {
  std::vector<double> out(k);
  for (int64_t i = 0; i < k; ++i) out[i] = act == ActType::BF16 ? bf16_rounded(x[i]) : x[i];
  if (act == ActType::F32 || act == ActType::BF16) return out;
  const bool by_group = act == ActType::I8 || act == ActType::I8SignMagnitude;
  const int64_t group = by_group ? 32 : act == ActType::I8Block ? 256 : k;
  for (int64_t g = 0; g < k; g += group) {
    float bound = 0;
    for (int64_t i = 0; i < group; ++i) bound = std::fmax(bound, std::fabs(x[g + i]));
    for (int64_t i = 0; i < group; ++i)
      out[g + i] = bound ? std::nearbyint(x[g + i] * (127.0f / bound)) * double(bound / 127.0f) : 0;
  }
  return out;
}

struct Case {
  WeightType from, to;
  bool float32;
  int64_t n, k;
};

void run_case(const KernelTable& t, const Case& c, Random& random) {
  char what[96];
  std::snprintf(what, sizeof what, "gemm %s->%s %s n=%lld k=%lld", name(c.from), name(c.to),
                c.float32 ? "f32" : "bf16", (long long)c.n, (long long)c.k);
  std::vector<float> x(c.n * c.k);
  for (float& v : x) v = random.normal();
  if (c.k >= 64)
    for (int i = 0; i < 32; ++i) x[32 + i] = 0;  // a group without any value
  const Source source = make_source(c.from, x, c.k, random);
  Source target = source;
  if (c.to != c.from) {
    std::vector<float> values(source.values.begin(), source.values.end());
    target = make_source(c.to, values, c.k, random);
  }
  const ActType act = t.act_type(c.to, c.float32);
  const int64_t panels = (c.n + kPanel - 1) / kPanel, bytes = t.panel_bytes(c.to, act, c.k);
  Buffer packed(panels * bytes);
  for (int64_t p = 0; p < panels; ++p)
    t.pack_panel(c.from, source.bytes.data(), c.to, act, p * kPanel, c.n, c.k,
                 packed.data + p * bytes);
  const PackedMatrix w{c.to, act, c.n, c.k, bytes, packed.data};
  const bool wide = act == ActType::BF16 && !target.wide.empty();
  const std::vector<double>& multiplied = wide ? target.wide : target.values;

  std::vector<float> row(c.k);
  for (int64_t n = 0; n < c.n; ++n) {
    t.unpack_row(w, n, row.data());
    for (int64_t k = 0; k < c.k; ++k)
      if (row[k] != float(target.values[n * c.k + k])) {
        fail(t.isa, what, "unpack_row %lld at %lld: %g for %g", (long long)n, (long long)k, row[k],
             target.values[n * c.k + k]);
        return;
      }
  }

  constexpr int64_t kMost = 64;
  std::vector<float> acts(kMost * c.k), bias(c.n);
  for (float& v : acts) v = random.normal() * (random.below(50) ? 1.0f : 20.0f);
  for (float& v : bias) v = random.normal();
  const int64_t stride = t.act_row_bytes(act, c.k);
  if (stride % 64) fail(t.isa, what, "act_row_bytes is no multiple of 64");
  Buffer act_rows(kMost * stride);
  for (int64_t m = 0; m < kMost; ++m)
    t.pack_act(act, &acts[m * c.k], c.k, act_rows.data + m * stride);

  const int64_t ldo = c.n + 3;
  std::vector<float> full(kMost * ldo, NAN);
  t.gemm(w, act_rows.data, stride, kMost, 0, panels, bias.data(), full.data(), ldo, false, nullptr);
  for (int64_t m = 0; m < kMost; m += 9) {
    const std::vector<double> a = rounded_act(act, &acts[m * c.k], c.k);
    for (int64_t n = 0; n < c.n; ++n) {
      double want = bias[n], magnitude = std::fabs(bias[n]);
      for (int64_t k = 0; k < c.k; ++k) {
        want += a[k] * multiplied[n * c.k + k];
        magnitude += std::fabs(a[k]) * target.sizes[n * c.k + k];
      }
      if (!(std::fabs(full[m * ldo + n] - want) <= 2e-6 * magnitude + 1e-30)) {
        fail(t.isa, what, "row %lld col %lld: %.9g for %.9g", (long long)m, (long long)n,
             full[m * ldo + n], want);
        return;
      }
    }
    for (int64_t n = c.n; n < ldo; ++n)
      if (!std::isnan(full[m * ldo + n])) fail(t.isa, what, "writes past n");
  }

  // Any number of rows and any split of the panels, with and without bias, whatever is prefetched: the
  // same bits.
  const ByteRange asked[] = {{64, 320}, {1024, 1024}, {4096, 1 << 20}};
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 29, 33, 50}) {
    std::vector<float> part(rows * ldo, NAN);
    const int64_t first = random.below(kMost - rows + 1), cut = random.below(panels + 1);
    const uint8_t* from = act_rows.data + first * stride;
    KvPrefetch kv_prefetch{w.data, asked, asked + 3};
    t.gemm(w, from, stride, rows, 0, cut, bias.data(), part.data(), ldo, false, &kv_prefetch);
    t.gemm(w, from, stride, rows, cut, panels, bias.data(), part.data(), ldo, true, &kv_prefetch);
    if (kv_prefetch.next > kv_prefetch.last) fail(t.isa, what, "prefetches more than it is given");
    for (int64_t m = 0; m < rows; ++m)
      if (std::memcmp(&part[m * ldo], &full[(first + m) * ldo], size_t(c.n) * 4)) {
        fail(t.isa, what, "row %lld of %lld differs from the same row of 64", (long long)m,
             (long long)rows);
        return;
      }
  }
  std::vector<float> plain(ldo, NAN);
  t.gemm(w, act_rows.data, stride, 1, 0, panels, nullptr, plain.data(), ldo, false, nullptr);
  for (int64_t n = 0; n < c.n; ++n)
    if (plain[n] + bias[n] != full[n]) fail(t.isa, what, "bias at %lld", (long long)n);
}

// Many rows at once: each has the bits it has alone.
void run_many_rows(const KernelTable& t, WeightType type, int64_t rows, int64_t k) {
  constexpr int64_t n = 70, panels = 3;
  Random random{7};
  std::vector<float> x(n * k), acts(rows * k);
  for (float& v : x) v = random.normal();
  for (float& v : acts) v = random.normal();
  const Source source = make_source(type, x, k, random);
  const ActType act = t.act_type(type, false);
  const int64_t bytes = t.panel_bytes(type, act, k), stride = t.act_row_bytes(act, k);
  Buffer packed(panels * bytes), act_rows(rows * stride);
  for (int64_t p = 0; p < panels; ++p)
    t.pack_panel(type, source.bytes.data(), type, act, p * kPanel, n, k, packed.data + p * bytes);
  for (int64_t m = 0; m < rows; ++m)
    t.pack_act(act, &acts[m * k], k, act_rows.data + m * stride);
  const PackedMatrix w{type, act, n, k, bytes, packed.data};
  std::vector<float> one(n);
  // Adjacent rows, which stay cached, and distant rows, which may be written with non-temporal stores.
  for (int64_t ldo : {n, kMaxCachedStride + 16}) {
    Buffer out(rows * ldo * 4);
    float* const all = out.floats();
    t.gemm(w, act_rows.data, stride, rows, 0, panels, nullptr, all, ldo, false, nullptr);
    for (int64_t m = rows - 1; m >= 0; m -= 7) {
      t.gemm(w, act_rows.data + m * stride, stride, 1, 0, panels, nullptr, one.data(), n, false,
             nullptr);
      if (std::memcmp(one.data(), all + m * ldo, size_t(n) * 4))
        fail(t.isa, "many rows", "%s: row %lld of %lld differs", name(type), (long long)m,
             (long long)rows);
      for (int64_t j = n; j < ldo; ++j)
        if (!std::isnan(all[m * ldo + j])) fail(t.isa, "many rows", "writes past n");
    }
  }
}

// A row packed in parts, last part first, equals the row packed as a whole.
void run_parts(const KernelTable& t) {
  Random random{11};
  for (int type = 0; type < kActTypes; ++type) {
    const auto act = static_cast<ActType>(type);
    const int64_t part = t.act_part(act);
    if (part == 0) continue;
    for (int64_t k : {part, 5 * part, 512 + 5 * part}) {
      const int64_t bytes = t.act_row_bytes(act, k), step = (k > 512 ? 2 : 1) * part;
      std::vector<float> x(k);
      for (float& v : x) v = random.normal();
      Buffer whole(bytes), parts(bytes);
      std::memset(whole.data, 0, size_t(bytes));
      std::memset(parts.data, 0, size_t(bytes));
      t.pack_act(act, x.data(), k, whole.data);
      for (int64_t from = (k - 1) / step * step; from >= 0; from -= step)
        t.pack_act_part(act, &x[from], from, std::min(step, k - from), k, parts.data);
      if (std::memcmp(whole.data, parts.data, size_t(bytes)))
        fail(t.isa, "parts of a row", "activation type %d, %lld values", type, (long long)k);
    }
  }
}

// Extreme int8 values: every product at its largest, where a saturating sum would be wrong.
void run_extremes(const KernelTable& t) {
  constexpr int64_t k = 64, n = 32;
  const ActType kind = t.act_type(WeightType::Q8_0, false);
  for (int sign : {-1, 1}) {
    std::vector<uint8_t> bytes;
    const uint16_t one = half_bits(1.0f);
    for (int64_t g = 0; g < n * k / 32; ++g) {
      append(bytes, &one, 2);
      for (int i = 0; i < 32; ++i) {
        const int8_t q = int8_t(g % 2 ? -128 : 127);
        append(bytes, &q, 1);
      }
    }
    const int64_t size = t.panel_bytes(WeightType::Q8_0, kind, k);
    Buffer packed(size), act(t.act_row_bytes(kind, k));
    t.pack_panel(WeightType::Q8_0, bytes.data(), WeightType::Q8_0, kind, 0, n, k,
                 packed.data);
    std::vector<float> x(k, 127.0f * sign), out(n);
    t.pack_act(kind, x.data(), k, act.data);
    const PackedMatrix w{WeightType::Q8_0, kind, n, k, size, packed.data};
    t.gemm(w, act.data, int64_t(act.size), 1, 0, 1, nullptr, out.data(), n, false, nullptr);
    for (float v : out)
      if (v != sign * 127.0f * 32 * (127 - 128)) fail(t.isa, "int8 extremes", "%g", v);
  }
}

constexpr int64_t kExtremeK = 64, kExtremeN = 32;

// A [kExtremeN, kExtremeK] matrix whose weights all have one value, so that no products cancel, times the
// largest and the smallest activation. A zero weight that is dequantized becomes 2^-29 of `largest`, the largest
// weight that a row may have; `what` and `code` are for the message.
void check_equal_weights(const KernelTable& t, WeightType type, const uint8_t* bytes, double value, double largest,
                         const char* what, int code) {
  constexpr int64_t k = kExtremeK, n = kExtremeN;
  const ActType kind = t.act_type(type, false);
  const int64_t size = t.panel_bytes(type, kind, k);
  Buffer packed(size), act(t.act_row_bytes(kind, k));
  t.pack_panel(type, bytes, type, kind, 0, n, k, packed.data);
  const PackedMatrix w{type, kind, n, k, size, packed.data};
  const double slack = kind == ActType::BF16 && value == 0 ? std::ldexp(127 * k * largest, -29) : 0;
  for (int sign : {-1, 1}) {
    std::vector<float> x(k, 127.0f * sign), out(n);
    t.pack_act(kind, x.data(), k, act.data);
    t.gemm(w, act.data, int64_t(act.size), 1, 0, 1, nullptr, out.data(), n, false, nullptr);
    for (float v : out)
      if (!(std::fabs(v - sign * 127 * k * value) <= slack)) fail(t.isa, what, "%s code %d: %g", name(type), code, v);
  }
}

// The same for 4-bit types: all weights have the same code, so no products cancel.
void run_nibble_extremes(const KernelTable& t, WeightType type) {
  const uint16_t one = half_bits(1.0f);
  for (int code = 0; code < 16; ++code) {
    std::vector<uint8_t> bytes;
    for (int64_t g = 0; g < kExtremeN * kExtremeK / 32; ++g) {
      if (type == WeightType::MXFP4) {
        bytes.push_back(127);
      } else {
        append(bytes, &one, 2);
      }
      bytes.resize(bytes.size() + 16, uint8_t(code * 17));
    }
    const double value = type == WeightType::Q4_0 ? code - 8
                         : type == WeightType::MXFP4 ? e2m1(code) : kIq4Steps[code];
    const double largest = type == WeightType::Q4_0 ? 8 : 127;
    check_equal_weights(t, type, bytes.data(), value, largest, "extremes of four bits", code);
  }
}

// The same for the other types of groups of 32.
void run_legacy_extremes(const KernelTable& t, WeightType type) {
  for (int code : {0, 1, 15, 16, 31}) {
    if (type == WeightType::Q4_1 && code > 15) continue;
    Source source{type, {}, {}, {}, {}};
    int q[32];
    for (int& of : q) of = code;
    for (int64_t g = 0; g < kExtremeN * kExtremeK / 32; ++g) legacy_block(type, 1, 3, q, source);
    check_equal_weights(t, type, source.bytes.data(), source.values[0], 34, "extremes of five bits", code);
  }
}

// The same for int8 with a scale per row: sums close to the limit of 32 bits.
void run_channel_extremes(const KernelTable& t) {
  constexpr int64_t k = 131072, n = 32, rows = 16;
  const float one = 1.0f;
  std::vector<uint8_t> bytes;
  for (int64_t row = 0; row < n; ++row) {
    append(bytes, &one, 4);
    bytes.resize(bytes.size() + size_t(k), uint8_t(row % 2 ? 127 : -127));
  }
  const int64_t size = t.panel_bytes(WeightType::I8, ActType::I8Row, k);
  const int64_t stride = t.act_row_bytes(ActType::I8Row, k);
  Buffer packed(size), act(stride * rows);
  t.pack_panel(WeightType::I8, bytes.data(), WeightType::I8, ActType::I8Row, 0, n, k, packed.data);
  const PackedMatrix w{WeightType::I8, ActType::I8Row, n, k, size, packed.data};
  for (int sign : {-1, 1}) {
    std::vector<float> x(k, 127.0f * sign), out(n * rows);
    for (int64_t m = 0; m < rows; ++m)
      t.pack_act(ActType::I8Row, x.data(), k, act.data + m * stride);
    for (int64_t count : {int64_t(1), rows}) {
      t.gemm(w, act.data, stride, count, 0, 1, nullptr, out.data(), n, false, nullptr);
      for (int64_t i = 0; i < n * count; ++i) {
        const float want = float(sign * (i % 2 ? 1 : -1) * 127.0 * 127.0 * double(k));
        if (out[i] != want) fail(t.isa, "I8 extremes", "%g for %g", out[i], want);
      }
    }
  }
}

// The same for K types: a block's sums at their largest.
void run_k_extremes(const KernelTable& t, WeightType type) {
  constexpr int64_t k = 256, n = 32;
  Random random{1};
  Source source{type, {}, {}, {}, {}};
  for (int64_t row = 0; row < n; ++row) random_k_block(type, random, false, true, source);
  const ActType act_type = t.act_type(type, false);
  const int64_t size = t.panel_bytes(type, act_type, k), stride = t.act_row_bytes(act_type, k);
  Buffer packed(size), act(stride * 16);
  t.pack_panel(type, source.bytes.data(), type, act_type, 0, n, k, packed.data);
  const PackedMatrix w{type, act_type, n, k, size, packed.data};
  for (int sign : {-1, 1}) {
    std::vector<float> x(k, 127.0f * sign), out(n * 16);
    for (int64_t m = 0; m < 16; ++m)
      t.pack_act(act_type, x.data(), k, act.data + m * stride);
    for (int64_t rows : {1, 16}) {
      t.gemm(w, act.data, stride, rows, 0, 1, nullptr, out.data(), n, false, nullptr);
      const double each = type == WeightType::Q6_K   ? 128 * 32
                          : type == WeightType::Q5_K ? 63 * (31 - 1)
                                                     : 63 * (15 - 1);
      const double reached = act_type == ActType::BF16 ? significant(each, 8, true) : each;
      for (int64_t i = 0; i < n * rows; ++i)
        if (out[i] != sign * 127 * 256 * reached) fail(t.isa, "K extremes", "%s %g", name(type), out[i]);
    }
  }
}

}  // namespace

void check_gemm(const KernelTable& t) {
  using W = WeightType;
  Random random{5};
  for (W to : {W::F32, W::F16, W::BF16, W::Q8_0, W::Q4_0, W::I8}) {
    const bool quantized = to == W::Q8_0 || to == W::Q4_0;
    for (bool float32 : {true, false}) {
      run_case(t, {to, to, float32, 1, quantized ? 32 : 1}, random);
      run_case(t, {to, to, float32, 33, quantized ? 96 : 77}, random);
      run_case(t, {to, to, float32, 77, quantized ? 160 : 130}, random);
      run_case(t, {to, to, float32, 128, 576}, random);
    }
    for (W from : {W::F32, W::F16, W::BF16})
      if (from != to) run_case(t, {from, to, false, 45, quantized ? 128 : 101}, random);
  }
  run_case(t, {W::Q4_0, W::Q4_0, false, 3, 8224}, random);  // many dequantized chunks in a row
  // More rows than any table processes at once.
  for (W type : {W::BF16, W::Q8_0, W::I8}) run_many_rows(t, type, 1100, 64);
  // Depths of whole chunks and more, and a few tiles of rows, the last one partial.
  for (int64_t rows : {33, 48, 63, 128, 145, 300}) {
    for (W type : {W::BF16, W::Q8_0, W::I8, W::Q4_0, W::IQ4_NL, W::Q4_1, W::Q5_0, W::Q5_1})
      for (int64_t k : {256, 352, 608}) run_many_rows(t, type, rows, k);
    for (W type : {W::Q4_K, W::Q5_K, W::Q6_K})
      for (int64_t k : {256, 768}) run_many_rows(t, type, rows, k);
  }
  run_parts(t);
  run_extremes(t);
  run_channel_extremes(t);
  for (W type : {W::Q4_0, W::MXFP4, W::IQ4_NL}) run_nibble_extremes(t, type);
  for (W type : {W::MXFP4, W::IQ4_NL}) {
    run_case(t, {type, type, false, 1, 32}, random);
    run_case(t, {type, type, false, 33, 96}, random);
    run_case(t, {type, type, true, 77, 160}, random);
    run_case(t, {type, type, false, 128, 576}, random);
  }
  for (W type : {W::Q4_1, W::Q5_0, W::Q5_1}) {
    run_case(t, {type, type, false, 1, 32}, random);
    run_case(t, {type, type, false, 33, 96}, random);
    run_case(t, {type, type, true, 77, 160}, random);
    run_case(t, {type, type, false, 128, 576}, random);
    run_legacy_extremes(t, type);
  }
  for (W type : {W::Q4_K, W::Q5_K, W::Q6_K}) {
    run_case(t, {type, type, false, 1, 256}, random);
    run_case(t, {type, type, false, 33, 512}, random);
    run_case(t, {type, type, true, 77, 768}, random);
    run_case(t, {type, type, false, 128, 1280}, random);
    run_k_extremes(t, type);
  }
}

}  // namespace tidemill::check
