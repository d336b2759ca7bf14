#include <utility>

#include "check.h"

namespace tidemill::check {
namespace {

void close_to(const KernelTable& t, const char* what, int64_t i, double got, double want,
              double tolerance) {
  if (!(std::fabs(got - want) <= tolerance))
    fail(t.isa, what, "at %lld: got %.9g, want %.9g", (long long)i, got, want);
}

std::vector<float> normals(int64_t count, Random& random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = random.normal();
  return values;
}

void convolution_of(const KernelTable& t, int64_t n, int64_t conv_kernel, bool biased, Random& random) {
  const auto x = normals(conv_kernel * n, random), weight = normals(conv_kernel * n, random);
  const auto bias = normals(n, random);
  std::vector<const float*> rows;
  for (int64_t j = 0; j < conv_kernel; ++j) rows.push_back(x.data() + j * n);
  std::vector<float> out(static_cast<size_t>(n + 1), NAN);
  t.conv_token(rows.data(), conv_kernel, weight.data(), biased ? bias.data() : nullptr, n, out.data());
  for (int64_t c = 0; c < n; ++c) {
    double sum = biased ? bias[c] : 0;
    for (int64_t j = 0; j < conv_kernel; ++j) sum += double(weight[j * n + c]) * x[j * n + c];
    close_to(t, "conv_token", c, out[c], sum / (1 + std::exp(-sum)), 4e-6);
  }
  if (!std::isnan(out[n])) fail(t.isa, "conv_token", "writes past n=%lld", (long long)n);
}

// Inputs of a head over `count` tokens, `stride` floats apart as the decoder has them.
struct Head {
  int64_t count, key_dim, value_dim, stride;
  std::vector<float> values, state;
  bool delta;

  Head(int64_t tokens, int64_t key, int64_t value, bool rule, Random& random)
      : count(tokens), key_dim(key), value_dim(value), stride(2 * key + 2 * value + 5),
        values(normals(tokens * stride, random)), state(normals(key * value, random)), delta(rule) {
    for (int64_t i = 0; i < count; ++i) {
      float* const row = values.data() + i * stride;
      const float norm = 1 / std::sqrt(float(key_dim));
      for (int64_t j = 0; j < 2 * key_dim; ++j) row[j] *= norm;
      row[2 * key_dim + value_dim] = 0.5f + 0.49f * random.uniform();
      row[2 * key_dim + value_dim + 1] = 0.5f + 0.49f * random.uniform();
    }
  }

  Scan scan(int64_t first, int64_t tokens, const float* from, float* to) {
    float* const row = values.data() + first * stride;
    return {tokens, key_dim, value_dim, delta, row, row + key_dim, row + 2 * key_dim,
            row + 2 * key_dim + value_dim, row + 2 * key_dim + value_dim + 1,
            row + 2 * key_dim + value_dim + 2, stride, 0.7f, from, to};
  }
  float* out(int64_t token) {
    return values.data() + token * stride + 2 * key_dim + value_dim + 2;
  }

  // Outputs [count, value_dim], then the state, in double precision.
  std::vector<double> reference(bool empty) const {
    std::vector<double> s(static_cast<size_t>(key_dim * value_dim)), all;
    for (size_t i = 0; i < s.size(); ++i) s[i] = empty ? 0 : state[i];
    for (int64_t t = 0; t < count; ++t) {
      const float *q = values.data() + t * stride, *k = q + key_dim, *v = k + key_dim;
      const double decay = v[value_dim], gain = v[value_dim + 1];
      for (int64_t c = 0; c < value_dim; ++c) {
        double known = 0, sum = 0.7f * double(v[c]);
        for (int64_t i = 0; i < key_dim; ++i) known += k[i] * (s[i * value_dim + c] *= decay);
        const double u = gain * (v[c] - (delta ? known : 0));
        for (int64_t i = 0; i < key_dim; ++i) sum += q[i] * (s[i * value_dim + c] += k[i] * u);
        all.push_back(sum);
      }
    }
    all.insert(all.end(), s.begin(), s.end());
    return all;
  }
};

void scan_of(const KernelTable& t, int64_t key, int64_t value, bool delta, Random& random) {
  constexpr int64_t kTokens = 23;
  for (const bool empty : {false, true}) {
    Head head(kTokens, key, value, delta, random);
    const auto want = head.reference(empty);
    const int64_t size = key * value;
    std::vector<float> to(static_cast<size_t>(size + 1), NAN), got;
    t.scan(head.scan(0, kTokens, empty ? nullptr : head.state.data(), to.data()));
    for (int64_t i = 0; i < kTokens; ++i) got.insert(got.end(), head.out(i), head.out(i) + value);
    got.insert(got.end(), to.begin(), to.end() - 1);
    for (size_t i = 0; i < want.size(); ++i) {
      close_to(t, "scan", int64_t(i), got[i], want[i], 2e-5 * (1 + std::fabs(want[i])));
    }
    if (!std::isnan(to.back())) fail(t.isa, "scan", "writes past %lld", (long long)size);
    // Promise 6: the same bits however the tokens are cut.
    std::vector<float> one(to), two(to.size(), NAN);
    float *from = nullptr, *next = one.data(), *other = two.data();
    int64_t first = 0;
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{2}, kTokens - 10}) {
      const float* const before = first > 0 ? from : empty ? nullptr : head.state.data();
      t.scan(head.scan(first, count, before, next));
      from = next;
      std::swap(next, other);
      first += count;
    }
    std::vector<float> cut;
    for (int64_t i = 0; i < kTokens; ++i) cut.insert(cut.end(), head.out(i), head.out(i) + value);
    cut.insert(cut.end(), from, from + size);
    if (std::memcmp(cut.data(), got.data(), cut.size() * sizeof(float)) != 0) {
      fail(t.isa, "scan", "cutting changes bits at [%lld, %lld]", (long long)key, (long long)value);
    }
  }
}

}  // namespace

void check_recurrent(const KernelTable& t) {
  Random random{29};
  for (const int64_t n : {1, 7, 16, 33, 96, 515}) {
    convolution_of(t, n, 4, n % 2 == 0, random);
    convolution_of(t, n, 1, n % 2 != 0, random);
  }
  for (const bool delta : {false, true}) {
    for (const int64_t value : {1, 8, 20, 64, 128, 136}) {
      scan_of(t, value == 128 ? 128 : 19, value, delta, random);
    }
  }
}

}  // namespace tidemill::check
