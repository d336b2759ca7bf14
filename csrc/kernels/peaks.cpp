// Loops of independent chains in assembly: compilers keep an array of accumulators in memory, which
// halves the rate.
#include "kernels/peaks.h"

#include <time.h>

#include <cstring>

#if defined(__x86_64__)
#include "kernels/simd/amx.h"
#endif

namespace tidemill {

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

namespace {

#if defined(__x86_64__)
#define TIDEMILL_12(op) \
  op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12)
#define TIDEMILL_24(op)                                                                     \
  TIDEMILL_12(op) op(13) op(14) op(15) op(16) op(17) op(18) op(19) op(20) op(21) op(22) op(23) \
  op(24)
#define TIDEMILL_CLOBBERS                                                                      \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",     \
  "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory"
constexpr long kLoops = 20000;

#define TIDEMILL_LOOP(name, clear, twelve_or_24, instruction, chains, operations)                 \
  double name() {                                                                                 \
    const double start = thread_seconds();                                                        \
    for (long i = 0; i < kLoops; ++i)                                                             \
      __asm__ volatile(clear twelve_or_24(instruction) "vzeroupper\n" ::: TIDEMILL_CLOBBERS);     \
    return double(chains) * (operations) * kLoops * 1e-9 / (thread_seconds() - start);            \
  }
#define TIDEMILL_FMA512(n) "vfmadd231ps %%zmm0, %%zmm0, %%zmm" #n "\n"
#define TIDEMILL_BF16(n) "vdpbf16ps %%zmm0, %%zmm0, %%zmm" #n "\n"
#define TIDEMILL_DOT512(n) "vpdpbusd %%zmm0, %%zmm0, %%zmm" #n "\n"
#define TIDEMILL_FMA256(n) "vfmadd231ps %%ymm0, %%ymm0, %%ymm" #n "\n"
// Without a byte dot product: products, pairs, sums.
#define TIDEMILL_DOT256(n)                    \
  "vpmaddubsw %%ymm0, %%ymm0, %%ymm13\n"      \
  "vpmaddwd %%ymm0, %%ymm13, %%ymm13\n"       \
  "vpaddd %%ymm13, %%ymm" #n ", %%ymm" #n "\n"
#define TIDEMILL_PAIRS512(n)                  \
  "vpmaddubsw %%zmm0, %%zmm0, %%zmm25\n"      \
  "vpmaddwd %%zmm0, %%zmm25, %%zmm25\n"       \
  "vpaddd %%zmm25, %%zmm" #n ", %%zmm" #n "\n"
#define TIDEMILL_VNNI256(n) "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm" #n "\n"
#define TIDEMILL_CLEAR512 "vpxord %%zmm0, %%zmm0, %%zmm0\n"
#define TIDEMILL_CLEAR256 "vpxor %%ymm0, %%ymm0, %%ymm0\n"
TIDEMILL_LOOP(fma512, TIDEMILL_CLEAR512, TIDEMILL_24, TIDEMILL_FMA512, 24, 32)
TIDEMILL_LOOP(bf16_512, TIDEMILL_CLEAR512, TIDEMILL_24, TIDEMILL_BF16, 24, 64)
TIDEMILL_LOOP(dot512, TIDEMILL_CLEAR512, TIDEMILL_24, TIDEMILL_DOT512, 24, 128)
TIDEMILL_LOOP(pairs512, TIDEMILL_CLEAR512, TIDEMILL_24, TIDEMILL_PAIRS512, 24, 128)
TIDEMILL_LOOP(fma256, TIDEMILL_CLEAR256, TIDEMILL_12, TIDEMILL_FMA256, 12, 16)
TIDEMILL_LOOP(dot256, TIDEMILL_CLEAR256, TIDEMILL_12, TIDEMILL_DOT256, 12, 64)
TIDEMILL_LOOP(vnni256, TIDEMILL_CLEAR256, TIDEMILL_12, TIDEMILL_VNNI256, 12, 64)

// Four accumulators of 16 x 16 and two operands of 16 rows of 64 bytes.
template <class Multiply>
double tiles(double operations, Multiply multiply) {
  using namespace TIDEMILL_AVX512;
  TileShapes shapes;
  for (int t = 0; t < 6; ++t) shapes.set(t, 16, 64);
  const double start = thread_seconds();
  tiles_configure(shapes);
  for (long i = 0; i < kLoops / 4; ++i) multiply();
  tiles_release();
  return 4 * operations * double(kLoops / 4) * 1e-9 / (thread_seconds() - start);
}
double tiles_i8() {
  using namespace TIDEMILL_AVX512;
  return tiles(2.0 * 16 * 16 * 64, [] {
    tile_dot_i8<0, 4, 5>(), tile_dot_i8<1, 4, 5>(), tile_dot_i8<2, 4, 5>(), tile_dot_i8<3, 4, 5>();
  });
}
double tiles_bf16() {
  using namespace TIDEMILL_AVX512;
  return tiles(2.0 * 16 * 16 * 32, [] {
    tile_dot_bf16<0, 4, 5>(), tile_dot_bf16<1, 4, 5>();
    tile_dot_bf16<2, 4, 5>(), tile_dot_bf16<3, 4, 5>();
  });
}

struct Peak {
  const char* isa;
  ActType act;
  double (*measure)();
};
constexpr Peak kPeaks[] = {
    {"amx", ActType::I8, tiles_i8},           {"amx", ActType::BF16, tiles_bf16},
    {"amx", ActType::F32, fma512},            {"avx512bf16", ActType::I8, dot512},
    {"avx512bf16", ActType::BF16, bf16_512},  {"avx512bf16", ActType::F32, fma512},
    {"avx512", ActType::I8, dot512},          {"avx512", ActType::BF16, fma512},
    {"avx512", ActType::F32, fma512},         {"avx512bw", ActType::I8, pairs512},
    {"avx512bw", ActType::BF16, fma512},      {"avx512bw", ActType::F32, fma512},
    {"avx2", ActType::I8, dot256},            {"avx2", ActType::BF16, fma256},
    {"avx2", ActType::F32, fma256},           {"avxvnni", ActType::I8, vnni256},
    {"avxvnni", ActType::BF16, fma256},       {"avxvnni", ActType::F32, fma256},
};
#endif

// The loop that measures a peak, or null.
auto peak_of(const char* isa, ActType act) -> double (*)() {
#if defined(__x86_64__)
  const bool int8 = act == ActType::I8SignMagnitude || act == ActType::I8Row || act == ActType::I8Block;
  const ActType kind = int8 ? ActType::I8 : act;
  for (const Peak& p : kPeaks)
    if (std::strcmp(p.isa, isa) == 0 && p.act == kind) return p.measure;
#endif
  (void)isa, (void)act;
  return nullptr;
}

}  // namespace

double register_peak(const char* isa, ActType act) {
  const auto measure = peak_of(isa, act);
  return measure ? measure() : 0;
}

}  // namespace tidemill
