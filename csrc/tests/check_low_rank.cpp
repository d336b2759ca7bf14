#include <algorithm>

#include "check.h"

namespace tidemill::check {
namespace {

// A change of a matrix and the exact values of its bytes.
struct Change {
  LowRank w{};
  std::vector<float> a, b;  // [rank, k], [n, rank]
  Buffer stored_a, stored_b, factor, shift;

  Change(bool wide, int64_t n, int64_t k, int64_t rank, bool gains, Random& random)
      : a(rank * k),
        b(n * rank),
        stored_a(rank * ((k + kLowRankStep - 1) / kLowRankStep * kLowRankStep) * 4),
        stored_b((n + kPanel - 1) / kPanel * kPanel * rank * 4),
        factor((n + kPanel - 1) / kPanel * kPanel * 4),
        shift((n + kPanel - 1) / kPanel * kPanel * 4) {
    const int64_t size = wide ? 4 : 2;
    const auto put = [&](uint8_t* to, int64_t at, float value) {
      const uint16_t bits = bf16_bits(value);
      wide ? std::memcpy(to + at * 4, &value, 4) : std::memcpy(to + at * 2, &bits, 2);
    };
    const int64_t stride = (k + kLowRankStep - 1) / kLowRankStep * kLowRankStep * size;
    w = {wide, n, k, rank, stride, stored_a.data, stored_b.data, 0.75f, nullptr, nullptr};
    std::memset(stored_a.data, 0, stored_a.size);
    std::memset(stored_b.data, 0, stored_b.size);
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        const float x = random.normal();
        a[r * k + c] = wide ? x : bf16_rounded(x);
        put(stored_a.data + r * stride, c, x);
      }
      for (int64_t i = 0; i < n; ++i) {
        const float x = random.normal();
        b[i * rank + r] = wide ? x : bf16_rounded(x);
        put(stored_b.data, (i / kPanel * rank + r) * kPanel + i % kPanel, x);
      }
    }
    if (!gains) return;
    for (int64_t i = 0; i < (n + kPanel - 1) / kPanel * kPanel; ++i) {
      factor.floats()[i] = random.normal();
      shift.floats()[i] = random.normal();
    }
    w.factor = factor.floats();
    w.shift = shift.floats();
  }
};

// Several rows of a batch, others between; each row alone gives the same bits, in any parts.
void check_change(const KernelTable& t, const Change& c, int64_t total, Random& random) {
  const LowRank& w = c.w;
  const int64_t stride = t.act_row_bytes(w.act(), w.k), ldo = w.n + 3;
  Buffer acts(total * stride);
  std::vector<float> x(total * w.k);
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < total; ++i) {
    if (total == 1 || i % 3 != 1) rows.push_back(int32_t(i));
    for (int64_t j = 0; j < w.k; ++j) x[i * w.k + j] = w.wide ? random.normal() : bf16_rounded(random.normal());
    t.pack_act(w.act(), x.data() + i * w.k, w.k, acts.data + i * stride);
  }
  const auto count = int64_t(rows.size()), panels = (w.n + kPanel - 1) / kPanel;
  std::vector<float> u(count * w.rank + 1, NAN), y(total * ldo), before;
  for (float& v : y) v = random.normal();
  before = y;
  t.low_rank_down(w, acts.data, stride, rows.data(), count, 0, w.rank, u.data());
  if (!std::isnan(u[count * w.rank])) fail(t.isa, "low_rank_down", "writes past rank %lld", (long long)w.rank);
  t.low_rank_up(w, u.data(), rows.data(), count, 0, 0, panels, y.data(), ldo);
  for (int64_t i = 0; i < total; ++i) {
    const auto found = std::find(rows.begin(), rows.end(), int32_t(i));
    for (int64_t n = 0; n < ldo; ++n) {
      const float got = y[i * ldo + n], was = before[i * ldo + n];
      if (found == rows.end() || n >= w.n) {
        if (std::memcmp(&got, &was, 4)) fail(t.isa, "low_rank_up", "changes row %lld at %lld", (long long)i, (long long)n);
        continue;
      }
      double sum = 0, size = std::fabs(was);
      for (int64_t r = 0; r < w.rank; ++r) {
        double dot = 0, dot_size = 0;
        for (int64_t k = 0; k < w.k; ++k) {
          const double product = double(c.a[r * w.k + k]) * x[i * w.k + k];
          dot += product;
          dot_size += std::fabs(product);
        }
        sum += w.scale * dot * c.b[n * w.rank + r];
        size += w.scale * dot_size * std::fabs(c.b[n * w.rank + r]);
      }
      double want = was + sum;
      if (w.factor) want = want * w.factor[n] + w.shift[n], size = size * std::fabs(w.factor[n]) + std::fabs(w.shift[n]);
      if (!(std::fabs(got - want) <= 4e-6 * size + 1e-6))
        fail(t.isa, "low_rank", "rank %lld k %lld row %lld at %lld: got %.9g, want %.9g", (long long)w.rank,
             (long long)w.k, (long long)i, (long long)n, double(got), want);
    }
  }
  // Alone, rank by rank and panel by panel.
  for (const int32_t row : rows) {
    std::vector<float> own(w.rank), out(before.begin() + row * ldo, before.begin() + (row + 1) * ldo);
    for (int64_t r = 0; r < w.rank; ++r)
      t.low_rank_down(w, acts.data, stride, &row, 1, r, r + 1, own.data());
    for (int64_t p = 0; p < panels; ++p)
      t.low_rank_up(w, own.data(), &row, 1, row, p, p + 1, out.data() + p * kPanel, ldo);
    if (std::memcmp(out.data(), y.data() + row * ldo, size_t(ldo) * 4))
      fail(t.isa, "low_rank", "row %d differs alone: rank %lld, %lld rows", row, (long long)w.rank, (long long)total);
  }
}

}  // namespace

void check_low_rank(const KernelTable& t) {
  Random random{41};
  for (const bool wide : {false, true}) {
    for (const int64_t rank : {1, 3, 4, 16, 21}) {
      for (const int64_t total : {1, 2, 5, 13, 26}) {
        const Change change(wide, rank == 16 ? 96 : 75, rank == 16 ? 128 : 70, rank, rank % 2 == 1, random);
        check_change(t, change, total, random);
      }
    }
  }
}

}  // namespace tidemill::check
