// Kernel rates on one thread in processor time, and of few-row products on all threads together as in a
// step; one JSON object per line (read by benchmarks/kernels.py). Plain reads of the same size and
// register-only peaks are interleaved call by call, because on shared machines nothing else is
// comparable.
#include <algorithm>
#include <chrono>

#include "check.h"
#include "memory/memory.h"
#include "peaks.h"
#include "runtime/threadpool.h"

namespace tidemill::check {
namespace {

volatile uint64_t sink;

#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
void read_plainly(const uint8_t* data, int64_t bytes) {
  uint64_t sums[32] = {};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    const uint64_t* p = reinterpret_cast<const uint64_t*>(data + i);
    for (int j = 0; j < 32; ++j) sums[j] += p[j];
  }
  for (uint64_t s : sums) sink = sink + s;
}

constexpr WeightType kTypes[] = {
    WeightType::Q8_0, WeightType::Q4_0, WeightType::MXFP4, WeightType::IQ4_NL,
    WeightType::Q4_1, WeightType::Q5_0, WeightType::Q5_1,
    WeightType::Q4_K, WeightType::Q5_K, WeightType::Q6_K,  WeightType::I8,
    WeightType::BF16, WeightType::F16,  WeightType::F32};

constexpr int64_t kRotate = int64_t(640) << 20;  // larger than any cache

// A product of n x k weights with up to `rows` rows, rotating over copies of the weights.
struct Product {
  static constexpr int64_t n = 4096, k = 2048, panels = n / kPanel;
  static constexpr int64_t ldo = n + 16;  // an odd number of lines, as in a step
  const KernelTable& t;
  const Buffer& memory;
  const WeightType type;
  const ActType act;
  const int64_t panel = t.panel_bytes(type, act, k), total = panels * panel;
  const int64_t copies = std::max<int64_t>(1, kRotate / total), stride = t.act_row_bytes(act, k);
  const bool alone;
  tidemill::Buffer<uint8_t> acts;  // on the same kind of pages as in a step
  tidemill::Buffer<float> out;

  Product(const KernelTable& table, WeightType weights, bool float32, int64_t rows,
          const Buffer& from, bool one_thread)
      : t(table), memory(from), type(weights), act(table.act_type(weights, float32)),
        alone(one_thread) {
    acts.ensure(rows * stride);
    out.ensure(rows * ldo);
    std::vector<float> x(k);
    Random random{1};
    for (int64_t m = 0; m < rows; ++m) {
      for (float& v : x) v = random.normal();
      t.pack_act(act, x.data(), k, acts.data() + m * stride);
    }
  }
  const uint8_t* copy(int64_t i) const { return memory.data + i % copies * total; }
  void multiply(int64_t i, int64_t rows, int64_t p0, int64_t p1) {
    const PackedMatrix w{type, act, n, k, panel, copy(i)};
    t.gemm(w, acts.data(), stride, rows, p0, p1, nullptr, out.data(), ldo, alone, nullptr);
  }
  void read(int64_t i, int64_t p0, int64_t p1) const {
    read_plainly(copy(i) + p0 * panel, (p1 - p0) * panel);
  }
  void report(const char* kernel, const char* suffix, int64_t rows, double seconds, double read,
              double peak) const {
    std::printf("{\"isa\": \"%s\", \"kernel\": \"%s\", \"type\": \"%s%s\", \"rows\": %lld, "
                "\"ms\": %.4f, \"gops\": %.1f, \"gbs\": %.2f, \"read\": %.2f, \"peak\": %.1f}\n",
                t.isa, kernel, name(type), suffix, (long long)rows, seconds * 1e3,
                2.0 * double(rows * n * k) / seconds * 1e-9, double(total) / seconds * 1e-9,
                read > 0 ? double(total) / read * 1e-9 : 0, peak);
  }
};

void bench_weight(const KernelTable& t, WeightType type, bool float32, const Buffer& memory) {
  Product product(t, type, float32, 512, memory, true);
  for (int64_t m : {1, 2, 4, 8, 16, 32, 64, 512}) {
    std::vector<double> times, reads, peaks;
    const int64_t repeats = m >= 512 ? 5 : m >= 64 ? 9 : 25;
    for (int64_t i = 0; i < repeats; ++i) {
      double start = thread_seconds();
      product.multiply(2 * i, m, 0, product.panels);
      times.push_back(thread_seconds() - start);
      peaks.push_back(register_peak(t.isa, product.act));
      if (m > 32) continue;
      start = thread_seconds();
      product.read(2 * i + 1, 0, product.panels);
      reads.push_back(thread_seconds() - start);
    }
    product.report("gemm", float32 ? " as f32" : "", m, median(times),
                   reads.empty() ? 0 : median(reads), median(peaks));
  }
}

// Split as in a step; wall-clock time, also for the register-only peak of all threads.
void bench_together(const KernelTable& t, WeightType type, const Buffer& memory, ThreadPool& pool) {
  Product product(t, type, false, 16, memory, pool.threads() == 1);
  const auto seconds = [&](auto piece) {
    const auto start = std::chrono::steady_clock::now();
    pool.run_tapered(product.panels, 1, [&](int64_t p0, int64_t p1, int) { piece(p0, p1); });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (int64_t m : {1, 2, 4, 8, 16}) {
    std::vector<double> times, reads, peaks;
    for (int64_t i = 0; i < 50; ++i) {
      times.push_back(
          seconds([&](int64_t p0, int64_t p1) { product.multiply(2 * i, m, p0, p1); }));
      reads.push_back(seconds([&](int64_t p0, int64_t p1) { product.read(2 * i + 1, p0, p1); }));
      if (i % 2 == 0) peaks.push_back(register_peak_together(t.isa, product.act, pool));
    }
    product.report("gemm together", "", m, median(times), median(reads), median(peaks));
  }
}

void bench_attention(const KernelTable& t, KvType type, int64_t block) {
  const int64_t heads = 16, kv_heads = 8, d = 128, length = 4096, group = heads / kv_heads;
  const int64_t bytes = t.kv_block_bytes(type, block, kv_heads, d, d), blocks = length / block;
  const int64_t sequences = std::max<int64_t>(2, kRotate / (blocks * bytes));
  Buffer cache(sequences * blocks * bytes);
  KvLayer kv{type, int32_t(block), int32_t(kv_heads), int32_t(d), int32_t(d), cache.data, bytes};
  Random random{2};
  std::vector<float> token(kv_heads * d);
  for (float& v : token) v = random.normal();
  for (int64_t slot = 0; slot < block; ++slot) t.kv_write(kv, 0, slot, token.data(), token.data());
  for (int64_t b = 1; b < sequences * blocks; ++b)
    std::memcpy(cache.data + b * bytes, cache.data, size_t(bytes));
  std::vector<int32_t> table(sequences * blocks);
  for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(i);
  for (size_t i = table.size() - 1; i > 0; --i) std::swap(table[i], table[random.below(i + 1)]);
  const AttnShape shape{int32_t(heads), int32_t(kv_heads), int32_t(d), int32_t(d), 0.088f, 0};
  const int64_t chunk = 64;
  std::vector<float> q(chunk * heads * d), m(chunk * group), l(chunk * group);
  std::vector<float> acc(chunk * group * d);
  for (float& v : q) v = random.normal();
  Buffer scratch(t.attn_scratch_bytes(shape, chunk));
  const auto run = [&](const int32_t* blocks_of, int64_t pos0, int64_t nq) {
    for (int64_t h = 0; h < kv_heads; ++h)
      for (int64_t span = 0; span * kSpan < pos0 + nq; ++span)
        t.attn_span(shape, kv, blocks_of, q.data(), heads * d, nq, pos0, h, span,
                    AttnNext{blocks_of, h, (span + 1) * kSpan, pos0 + nq}, m.data(), l.data(),
                    acc.data(), scratch.data);
  };
  for (int64_t nq : {1, 2, 3, 4, 8, 16, 32, 64}) {  // the last ones of `length` positions
    std::vector<double> times, reads;
    for (int64_t i = 0; i < (nq == 1 ? 25 : 9); ++i) {
      double start = thread_seconds();
      run(&table[(2 * i) % sequences * blocks], length - nq, nq);
      times.push_back(thread_seconds() - start);
      start = thread_seconds();
      read_plainly(cache.data + (2 * i + 1) % sequences * blocks * bytes, blocks * bytes);
      reads.push_back(thread_seconds() - start);
    }
    const double seconds = median(times);
    std::printf("{\"isa\": \"%s\", \"kernel\": \"%s attention\", \"type\": \"%s\", \"block\": %lld, "
                "\"rows\": %lld, \"ms\": %.4f, \"gops\": %.1f, \"gbs\": %.2f, \"read\": %.2f}\n",
                t.isa, nq == 1 ? "decode" : "chunk", name(type), (long long)block, (long long)nq,
                seconds * 1e3, 4.0 * heads * d * double(nq) * double(length) / seconds * 1e-9,
                blocks * bytes / seconds * 1e-9, blocks * bytes / median(reads) * 1e-9);
  }
  const ActType act = type == KvType::F32 ? ActType::F32 : ActType::BF16;
  for (int64_t tokens : {128, 512, 2048}) {
    std::vector<double> prefill, peaks;
    for (int i = 0; i < (tokens > 512 ? 3 : 7); ++i) {
      peaks.push_back(register_peak(t.isa, act));
      const double start = thread_seconds();
      for (int64_t pos = 0; pos < tokens; pos += chunk) run(table.data(), pos, chunk);
      prefill.push_back(thread_seconds() - start);
    }
    const double work = 2.0 * heads * d * double(tokens) * double(tokens);  // causal half of both
    std::printf("{\"isa\": \"%s\", \"kernel\": \"prefill attention\", \"type\": \"%s\", \"block\": "
                "%lld, \"rows\": %lld, \"ms\": %.4f, \"gops\": %.1f, \"peak\": %.1f}\n",
                t.isa, name(type), (long long)block, (long long)tokens, median(prefill) * 1e3,
                work / median(prefill) * 1e-9, median(peaks));
  }
}

}  // namespace

void bench(const KernelTable& t, const char* filter, int threads) {
  const auto wanted = [&](const char* what) { return std::strstr(what, filter) != nullptr; };
  {
    Buffer memory(kRotate);
    // Small finite values in every weight type: f16 scales and floats alike.
    std::memset(memory.data, 0x1c, memory.size);
    for (WeightType type : kTypes)
      for (bool float32 : {false, true})
        if (wanted(name(type)) && (!float32 || type == WeightType::BF16))
          bench_weight(t, type, float32, memory);
    ThreadPool pool(threads);
    for (WeightType type : kTypes)
      if (wanted(name(type))) bench_together(t, type, memory, pool);
  }
  for (KvType type : {KvType::BF16, KvType::I8, KvType::I4, KvType::F32})
    if (wanted("attention") || wanted(type == KvType::BF16 ? "kv-bf16" : "kv"))
      for (int64_t block : {16, 32, 128}) bench_attention(t, type, block);
}

}  // namespace tidemill::check
