// Rates of the kernels on one thread, in processor time. Memory-bound ones are given as a share of
// a plain read of as many bytes, compute-bound ones (AVX-512) as a share of what registers alone
// reach, each taken in turn with them call by call: on shared machines nothing else compares.
#include <time.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "check.h"

namespace tidemill::check {
namespace {

double now() {  // of this thread's own time: other work on the machine preempts
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

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

// GOP/s of 24 independent chains of fma, or of int8 dot products, in registers alone. In assembly:
// compilers keep such an array in memory, which halves the rate.
#if defined(__x86_64__)
#define TIDEMILL_FMA(n) "vfmadd231ps %%zmm0, %%zmm0, %%zmm" #n "\n"
#define TIDEMILL_DOT(n) "vpdpbusd %%zmm0, %%zmm0, %%zmm" #n "\n"
#define TIDEMILL_24(op)                                                                     \
  op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13) op(14)  \
  op(15) op(16) op(17) op(18) op(19) op(20) op(21) op(22) op(23) op(24)
#define TIDEMILL_CLOBBERS                                                                       \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
  "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory"
constexpr long kPeakLoops = 20000;

double fma_peak() {
  const double start = now();
  for (long i = 0; i < kPeakLoops; ++i)
    __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n" TIDEMILL_24(TIDEMILL_FMA)
                     "vzeroupper\n" ::: TIDEMILL_CLOBBERS);
  return 24 * 32 * kPeakLoops * 1e-9 / (now() - start);
}
double dot_peak() {
  const double start = now();
  for (long i = 0; i < kPeakLoops; ++i)
    __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n" TIDEMILL_24(TIDEMILL_DOT)
                     "vzeroupper\n" ::: TIDEMILL_CLOBBERS);
  return 24 * 128 * kPeakLoops * 1e-9 / (now() - start);
}
#endif

double register_peak(const KernelTable& t, bool int8) {
#if defined(__x86_64__)
  if (std::strncmp(t.isa, "avx512", 6) == 0 || std::strcmp(t.isa, "amx") == 0) return int8 ? dot_peak() : fma_peak();
#endif
  (void)t, (void)int8;
  return 0;
}

constexpr int64_t kRotate = int64_t(640) << 20;  // beyond every cache

void bench_weight(const KernelTable& t, WeightType type, bool float32, const Buffer& memory) {
  const int64_t n = 4096, k = 2048, panels = n / kPanel;
  const ActType act = t.act_type(type, float32);
  const int64_t bytes = t.panel_bytes(type, act, k), total = panels * bytes;
  const int64_t copies = std::max<int64_t>(1, kRotate / total), stride = t.act_row_bytes(act, k);
  std::vector<float> x(512 * k), out(512 * n);
  Random random{1};
  for (float& v : x) v = random.normal();
  Buffer acts(512 * stride);
  for (int64_t m = 0; m < 512; ++m) t.pack_act(act, &x[m * k], k, acts.data + m * stride);
  for (int64_t m : {1, 2, 4, 8, 16, 64, 512}) {
    std::vector<double> times, reads, peaks;
    const int64_t repeats = m >= 512 ? 5 : m >= 64 ? 9 : 25;
    for (int64_t i = 0; i < repeats; ++i) {
      const uint8_t* weights = memory.data + (2 * i) % copies * total;
      const PackedMatrix w{type, act, n, k, bytes, weights};
      double start = now();
      t.gemm(w, acts.data, stride, m, 0, panels, nullptr, out.data(), n);
      times.push_back(now() - start);
      peaks.push_back(register_peak(t, act == ActType::I8));
      if (m > 16) continue;
      start = now();
      read_plainly(memory.data + (2 * i + 1) % copies * total, total);
      reads.push_back(now() - start);
    }
    const double seconds = median(times);
    std::printf("%-8s gemm %-5s%s M=%-4lld %8.3f ms %7.1f GOP/s %6.1f GB/s", t.isa, name(type),
                float32 ? " f32" : "    ", (long long)m, seconds * 1e3,
                2.0 * m * n * k / seconds * 1e-9, total / seconds * 1e-9);
    if (m <= 16)
      std::printf("  read %5.1f GB/s, share %3.0f %%", total / median(reads) * 1e-9,
                  100 * median(reads) / seconds);
    if (median(peaks) > 0)
      std::printf("  %3.0f %% of %3.0f GOP/s", 200.0 * m * n * k / seconds * 1e-9 / median(peaks),
                  median(peaks));
    std::printf("\n");
  }
}

void bench_attention(const KernelTable& t, KvType type, int64_t block) {
  const int64_t heads = 16, kv_heads = 8, d = 128, length = 4096, group = heads / kv_heads;
  const int64_t bytes = t.kv_block_bytes(type, block, kv_heads, d), blocks = length / block;
  const int64_t sequences = std::max<int64_t>(2, kRotate / (blocks * bytes));
  Buffer cache(sequences * blocks * bytes);
  KvLayer kv{type, int32_t(block), int32_t(kv_heads), int32_t(d), cache.data, bytes};
  Random random{2};
  std::vector<float> token(kv_heads * d);
  for (float& v : token) v = random.normal();
  for (int64_t slot = 0; slot < block; ++slot) t.kv_write(kv, 0, slot, token.data(), token.data());
  for (int64_t b = 1; b < sequences * blocks; ++b)
    std::memcpy(cache.data + b * bytes, cache.data, size_t(bytes));
  std::vector<int32_t> table(sequences * blocks);
  for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(i);
  for (size_t i = table.size() - 1; i > 0; --i) std::swap(table[i], table[random.below(i + 1)]);
  const AttnShape shape{int32_t(heads), int32_t(kv_heads), int32_t(d), 0.088f, 0};
  const int64_t chunk = 64;
  std::vector<float> q(chunk * heads * d), m(chunk * group), l(chunk * group);
  std::vector<float> acc(chunk * group * d);
  for (float& v : q) v = random.normal();
  Buffer scratch(t.attn_scratch_bytes(shape, chunk));
  const auto run = [&](const int32_t* blocks_of, int64_t pos0, int64_t nq) {
    for (int64_t span = 0; span * kSpan < pos0 + nq; ++span)
      for (int64_t h = 0; h < kv_heads; ++h)
        t.attn_span(shape, kv, blocks_of, q.data(), heads * d, nq, pos0, h, span, m.data(),
                    l.data(), acc.data(), scratch.data);
  };
  std::vector<double> times, reads;
  for (int64_t i = 0; i < 25; ++i) {
    double start = now();
    run(&table[(2 * i) % sequences * blocks], length - 1, 1);
    times.push_back(now() - start);
    start = now();
    read_plainly(cache.data + (2 * i + 1) % sequences * blocks * bytes, blocks * bytes);
    reads.push_back(now() - start);
  }
  std::printf("%-8s decode %-5s block %-4lld %8.3f ms %6.1f GB/s  read %5.1f GB/s, share %3.0f %%\n",
              t.isa, name(type), (long long)block, median(times) * 1e3,
              blocks * bytes / median(times) * 1e-9, blocks * bytes / median(reads) * 1e-9,
              100 * median(reads) / median(times));
  for (int64_t nq : {4, 8, 16, 32, 64}) {
    std::vector<double> parts, beside;
    for (int64_t i = 0; i < 9; ++i) {
      double start = now();
      run(&table[(2 * i) % sequences * blocks], length - nq, nq);
      parts.push_back(now() - start);
      start = now();
      read_plainly(cache.data + (2 * i + 1) % sequences * blocks * bytes, blocks * bytes);
      beside.push_back(now() - start);
    }
    std::printf("%-8s chunk of %-3lld %-5s block %-4lld %8.3f ms, %4.1f reads, %7.1f GFLOP/s\n", t.isa,
                (long long)nq, name(type), (long long)block, median(parts) * 1e3,
                median(parts) / median(beside),
                4.0 * heads * d * double(nq) * double(length) / median(parts) * 1e-9);
  }
  for (int64_t tokens : {128, 512, 2048}) {
    std::vector<double> prefill, peaks;
    for (int i = 0; i < (tokens > 512 ? 3 : 7); ++i) {
      peaks.push_back(register_peak(t, false));
      const double start = now();
      for (int64_t pos = 0; pos < tokens; pos += chunk) run(table.data(), pos, chunk);
      prefill.push_back(now() - start);
    }
    const double work = 2.0 * heads * d * double(tokens) * double(tokens);  // causal half of both
    std::printf("%-8s prefill %-5s T=%-5lld %8.3f ms %7.1f GFLOP/s, peak %.0f\n", t.isa, name(type),
                (long long)tokens, median(prefill) * 1e3, work / median(prefill) * 1e-9,
                median(peaks));
  }
}

}  // namespace

void bench(const KernelTable& t, const char* filter) {
  const auto wanted = [&](const char* what) { return std::strstr(what, filter) != nullptr; };
  {
    Buffer memory(kRotate);
    // Small finite values in every weight type: f16 scales and floats alike.
    std::memset(memory.data, 0x1c, memory.size);
    for (WeightType type : {WeightType::Q8_0, WeightType::Q4_0, WeightType::Q4_K, WeightType::Q5_K,
                            WeightType::Q6_K, WeightType::BF16, WeightType::F16, WeightType::F32})
      for (bool float32 : {false, true})
        if (wanted(name(type)) && (!float32 || type == WeightType::BF16))
          bench_weight(t, type, float32, memory);
  }
  for (KvType type : {KvType::BF16, KvType::I8, KvType::F32})
    if (wanted("attention") || wanted(type == KvType::BF16 ? "kv-bf16" : "kv"))
      for (int64_t block : {16, 32, 128}) bench_attention(t, type, block);
}

}  // namespace tidemill::check
