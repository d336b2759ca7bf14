#include <algorithm>

#include "check.h"

namespace tidemill::check {
namespace {

struct Shape {
  KvType type;
  int64_t block, heads, kv_heads, d, window, length;
  int64_t dv = 0;  // width of V; 0: as wide as K
  float softcap = 0.0f;
  bool slopes = false;  // ALiBi, with a different slope per head
  int64_t v() const { return dv ? dv : d; }
};

// A sequence in a paged cache, with its own K, V and queries; unwritten slots hold NaN.
struct Sequence {
  const KernelTable& t;
  Shape s;
  std::vector<float> k, v, q, slopes;
  std::vector<int32_t> table;
  Buffer cache;
  KvLayer layer;

  Sequence(const KernelTable& table_, const Shape& shape, uint64_t seed)
      : t(table_), s(shape), cache(cache_bytes(table_, shape)) {
    Random random{seed};
    k.resize(s.length * s.kv_heads * s.d);
    v.resize(s.length * s.kv_heads * s.v());
    q.resize(s.length * s.heads * s.d);
    for (float& x : k) x = random.normal();
    for (float& x : v) x = random.normal();
    for (float& x : q) x = random.normal();
    for (int64_t h = 0; h < s.heads; ++h) slopes.push_back(0.6f / float(1 + h));
    const int64_t used = (s.length + s.block - 1) / s.block;
    for (int64_t i = 0; i < used; ++i) table.push_back(int32_t(i + 1));
    for (int64_t i = used - 1; i > 0; --i) std::swap(table[i], table[random.below(i + 1)]);
    // Blocks past the sequence must never be accessed.
    for (int i = 0; i < 64; ++i) table.push_back(-1000000);
    layer = {s.type, int32_t(s.block), int32_t(s.kv_heads), int32_t(s.d), int32_t(s.v()),
             cache.data, t.kv_block_bytes(s.type, s.block, s.kv_heads, s.d, s.v())};
  }
  static int64_t cache_bytes(const KernelTable& t, const Shape& s) {
    return (s.length / s.block + 3) * t.kv_block_bytes(s.type, s.block, s.kv_heads, s.d, s.v());
  }
  void write(int64_t pos) {
    t.kv_write(layer, table[pos / s.block], pos % s.block, &k[pos * s.kv_heads * s.d],
               &v[pos * s.kv_heads * s.v()]);
  }
  AttnShape shape() const {
    AttnShape shape{int32_t(s.heads), int32_t(s.kv_heads), int32_t(s.d), int32_t(s.v()),
                    1.0f / std::sqrt(float(s.d)), s.window};
    shape.softcap = s.softcap;
    shape.slopes = s.slopes ? slopes.data() : nullptr;
    return shape;
  }
  // Output [nq, heads, dv] of the queries pos0 .. pos0 + nq, in one call per KV head and span.
  std::vector<float> attend(int64_t pos0, int64_t nq) const {
    const AttnShape a = shape();
    const int64_t group = s.heads / s.kv_heads, rows = nq * group, dv = s.v();
    std::vector<float> out(nq * s.heads * dv, NAN);
    Buffer scratch(t.attn_scratch_bytes(a, nq));
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      std::vector<float> m(rows, -INFINITY), l(rows, 0), acc(rows * dv, 0);
      std::vector<float> m2(rows, NAN), l2(rows, NAN), acc2(rows * dv, NAN);
      for (int64_t span = 0; span * kSpan < pos0 + nq; ++span) {
        scratch.poison();
        t.attn_span(a, layer, table.data(), &q[pos0 * s.heads * s.d], s.heads * s.d, nq, pos0, h,
                    span, AttnNext{table.data(), h, pos0, pos0 + nq}, m2.data(), l2.data(),
                    acc2.data(), scratch.data);
        t.attn_merge(rows, dv, m.data(), l.data(), acc.data(), m2.data(), l2.data(), acc2.data());
      }
      for (int64_t r = 0; r < rows; ++r)
        t.attn_finish(dv, l[r], &acc[r * dv],
                      &out[(r / group * s.heads + h * group + r % group) * dv]);
    }
    return out;
  }
  // One query's output in double precision, from the cached values.
  std::vector<double> reference(int64_t pos) const {
    const int64_t group = s.heads / s.kv_heads, row = s.kv_heads * s.d;
    const int64_t dv = s.v(), v_row = s.kv_heads * dv;
    const int64_t lo = s.window ? std::max<int64_t>(0, pos - s.window + 1) : 0;
    std::vector<float> kr((pos + 1) * row), vr((pos + 1) * v_row);
    for (int64_t i = lo; i <= pos; ++i)
      t.kv_read(layer, table[i / s.block], i % s.block, &kr[i * row], &vr[i * v_row]);
    std::vector<double> out(s.heads * dv, 0.0);
    for (int64_t h = 0; h < s.heads; ++h) {
      const float* query = &q[(pos * s.heads + h) * s.d];
      std::vector<double> score(pos + 1);
      double best = -INFINITY, sum = 0;
      for (int64_t i = lo; i <= pos; ++i) {
        double dot = 0;
        for (int64_t j = 0; j < s.d; ++j) {
          const bool exact = s.type == KvType::F32 || s.type == KvType::I4;
          const float x = exact ? query[j] : bf16_rounded(query[j]);
          dot += double(x) * kr[i * row + h / group * s.d + j];
        }
        score[i] = dot * shape().scale;
        if (s.softcap > 0) score[i] = s.softcap * std::tanh(score[i] / s.softcap);
        if (s.slopes) score[i] -= slopes[h] * double(pos - i);
        best = std::max(best, score[i]);
      }
      for (int64_t i = lo; i <= pos; ++i) sum += score[i] = std::exp(score[i] - best);
      for (int64_t i = lo; i <= pos; ++i)
        for (int64_t j = 0; j < dv; ++j)
          out[h * dv + j] += score[i] / sum * vr[i * v_row + h / group * dv + j];
    }
    return out;
  }
};

void describe(char* what, size_t size, const Shape& s) {
  std::snprintf(what, size, "attention %s block=%lld heads=%lld/%lld d=%lld/%lld window=%lld len=%lld%s%s",
                name(s.type), (long long)s.block, (long long)s.heads, (long long)s.kv_heads,
                (long long)s.d, (long long)s.v(), (long long)s.window, (long long)s.length,
                s.softcap > 0 ? " softcap" : "", s.slopes ? " slopes" : "");
}

// Values of an I4 cache lie within their group's range, none is clipped, and each is the nearest step.
// `codes` and `pairs` as exported: scale and minimum per group of `width` values.
bool nearest_steps(const std::vector<float>& got, const float* wrote,
                   const std::vector<uint8_t>& codes, const std::vector<float>& pairs,
                   int64_t head_width, int64_t width) {
  const int64_t groups = (head_width + width - 1) / width;
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t head = i / size_t(head_width), group = i % size_t(head_width) / size_t(width);
    const float* pair = &pairs[(head * size_t(groups) + group) * 2];
    const double scale = pair[0], minimum = pair[1];
    if (codes[i] > 15 || float(codes[i] * scale + minimum) != got[i]) return false;
    if (!(std::fabs(got[i] - wrote[i]) <= 0.5001 * scale + 1e-7)) return false;
    if (scale > 0.5) return false;  // of Gaussian values
  }
  return true;
}

// Cached values approximate what was written, and export/import preserves bits.
void check_cache(Sequence& sequence, const char* what) {
  const KernelTable& t = sequence.t;
  const Shape& s = sequence.s;
  const int64_t n = s.kv_heads * s.d, nv = s.kv_heads * s.v(), pos = s.length / 2;
  const int64_t groups = (s.d + kKvGroup - 1) / kKvGroup;
  std::vector<float> k(n), v(nv), k2(n), v2(nv), ks(s.kv_heads * groups * 2), vs(s.kv_heads * 2);
  std::vector<uint8_t> ek(n * 4), ev(nv * 4);
  const int64_t block = sequence.table[pos / s.block], slot = pos % s.block;
  t.kv_read(sequence.layer, block, slot, k.data(), v.data());
  const double allowed = s.type == KvType::F32    ? 0
                         : s.type == KvType::BF16 ? 0.016
                         : s.type == KvType::I8   ? 0.015
                                                  : 0.25;
  const auto holds = [&](const std::vector<float>& got, const float* wrote) {
    for (size_t i = 0; i < got.size(); ++i)
      if (!(std::fabs(got[i] - wrote[i]) <= allowed)) {
        fail(t.isa, what, "cache holds %g for %g", got[i], wrote[i]);
        return false;
      }
    return true;
  };
  if (!holds(k, &sequence.k[pos * n]) || !holds(v, &sequence.v[pos * nv])) return;
  t.kv_export(sequence.layer, block, slot, ek.data(), ev.data(), ks.data(), vs.data());
  if (s.type == KvType::I4 && (!nearest_steps(k, &sequence.k[pos * n], ek, ks, s.d, kKvGroup) ||
                               !nearest_steps(v, &sequence.v[pos * nv], ev, vs, s.v(), s.v())))
    fail(t.isa, what, "codes, scales and minima are not the nearest to what was written");
  t.kv_import(sequence.layer, 0, slot, ek.data(), ev.data(), ks.data(), vs.data());
  t.kv_read(sequence.layer, 0, slot, k2.data(), v2.data());
  if (k != k2 || v != v2) fail(t.isa, what, "export and import change values");
}

std::vector<float> run_shape(const KernelTable& t, const Shape& s) {
  char what[128];
  describe(what, sizeof what, s);
  Sequence sequence(t, s, 77);
  const int64_t row = s.heads * s.v();
  // Decode: each query before anything after it has been written.
  std::vector<float> decoded;
  const bool sparse = s.length > 200;  // long sequences: a sample of the queries
  std::vector<int64_t> sampled;
  for (int64_t pos = 0; pos < s.length; ++pos) {
    sequence.write(pos);
    const int64_t in_span = pos % kSpan;
    if (sparse && pos % 41 && in_span > 1 && in_span < kSpan - 1 && pos + 2 < s.length) continue;
    const std::vector<float> out = sequence.attend(pos, 1);
    decoded.insert(decoded.end(), out.begin(), out.end());
    sampled.push_back(pos);
  }
  check_cache(sequence, what);
  const double tolerance = s.type == KvType::F32 ? 4e-6 : s.type == KvType::I4 ? 1e-5 : 8e-3;
  for (size_t i = 0; i < sampled.size(); i += 3) {
    const std::vector<double> want = sequence.reference(sampled[i]);
    for (int64_t j = 0; j < row; ++j)
      if (!(std::fabs(decoded[i * row + j] - want[j]) <= tolerance)) {
        fail(t.isa, what, "query %lld value %lld: %.7g for %.7g", (long long)sampled[i],
             (long long)j, decoded[i * row + j], want[j]);
        return decoded;
      }
  }
  // Prefill in chunks of any size, after all tokens were written: the same bits.
  for (int64_t chunk : {2, 5, 16, 77, 1 << 20}) {
    if (sparse && chunk < 16) continue;
    std::vector<float> all;
    for (int64_t pos = 0; pos < s.length; pos += chunk) {
      const std::vector<float> out = sequence.attend(pos, std::min(chunk, s.length - pos));
      all.insert(all.end(), out.begin(), out.end());
    }
    for (size_t i = 0; i < sampled.size(); ++i)
      if (std::memcmp(&decoded[i * row], &all[sampled[i] * row], size_t(row) * 4)) {
        fail(t.isa, what, "query %lld differs between decode and chunks of %lld",
             (long long)sampled[i], (long long)chunk);
        return decoded;
      }
  }
  return decoded;
}

// Later tokens must not matter, not even infinities.
void run_infinite_future(const KernelTable& t, KvType type) {
  Sequence sequence(t, {type, 16, 6, 2, 32, 0, 40}, 3);
  const int64_t row = sequence.s.kv_heads * sequence.s.d;
  if (type == KvType::F32 || type == KvType::BF16)
    for (int64_t i = 30 * row; i < 40 * row; ++i) sequence.k[i] = sequence.v[i] = INFINITY;
  for (int64_t pos = 0; pos < 40; ++pos) sequence.write(pos);
  const std::vector<float> together = sequence.attend(0, 40);
  for (int64_t i = 0; i < 30 * sequence.s.heads * sequence.s.d; ++i)
    if (!std::isfinite(together[i])) {
      fail(t.isa, "attention", "%s: a later token's infinity reaches query %lld", name(type),
           (long long)(i / (sequence.s.heads * sequence.s.d)));
      return;
    }
}

}  // namespace

void check_attention(const KernelTable& t) {
  for (KvType type : {KvType::F32, KvType::BF16, KvType::I8, KvType::I4}) {
    run_shape(t, {type, 16, 1, 1, 2, 0, 35});
    run_shape(t, {type, 32, 6, 2, 24, 0, 71});
    run_shape(t, {type, 16, 7, 1, 80, 0, 50});
    run_shape(t, {type, 64, 4, 4, 64, 0, 90});
    run_shape(t, {type, 32, 14, 2, 64, 13, 100});
    run_shape(t, {type, 128, 32, 2, 16, 1, 40});
    run_shape(t, {type, 16, 3, 1, 20, 300, 1100});
    run_shape(t, {type, 32, 1, 1, 48, 0, 1200});       // few rows that see more than a span
    run_shape(t, {type, 16, 3, 1, 36, 700, 1300});
    run_shape(t, {type, 32, 5, 1, 50, 0, 600, 34});    // latents: V is narrower than K
    run_shape(t, {type, 16, 80, 1, 96, 0, 45, 64});
    run_shape(t, {type, 64, 6, 2, 24, 30, 70, 56});
    run_shape(t, {type, 32, 6, 2, 64, 0, 90, 0, 1.5f});
    run_shape(t, {type, 16, 5, 1, 32, 0, 140, 0, 0.0f, true});
    run_shape(t, {type, 64, 34, 2, 96, 200, 600, 64, 2.0f, true});
    const std::vector<float> small = run_shape(t, {type, 16, 4, 2, 128, 0, 1060});
    for (int64_t block : {32, 64, 128})
      if (run_shape(t, {type, block, 4, 2, 128, 0, 1060}) != small)
        fail(t.isa, "attention", "%s: block size %lld changes bits", name(type),
             (long long)block);
    run_infinite_future(t, type);
  }
}

}  // namespace tidemill::check
