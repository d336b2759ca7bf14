// kernel_check [isa]: checks every kernel of every instruction set of this machine against a double
// precision reference, and the bitwise invariances of promise 6. Also the AMX kernels with emulated
// tiles, and the AVX-512 and AVX-VNNI kernels on AVX2 where the machine lacks them. Emulated tables can
// also be named. Exit status 1 on any failure.
// kernel_check bench [isa [filter [threads]]]: rates, interleaved with plain reads.
// kernel_check peak isa [threads]: GOP/s of threads multiplying int8 in registers, median of 25.
#include <cstdarg>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "peaks.h"

namespace tidemill::check {

int failures = 0;

void fail(const char* isa, const char* what, const char* format, ...) {
  if (++failures > 40) return;
  std::printf("FAIL %s %s: ", isa, what);
  va_list args;
  va_start(args, format);
  std::vprintf(format, args);
  va_end(args);
  std::printf("\n");
}

void check_table(const KernelTable& table) {
  check_elementwise(table);
  check_gemm(table);
  check_attention(table);
  check_recurrent(table);
  check_low_rank(table);
  if (std::strstr(table.isa, "avx512bf16")) {  // by the loops of the other processors
    assume_zen5_or_later(!is_zen5_or_later());
    check_gemm(table);
    check_attention(table);
    assume_zen5_or_later(!is_zen5_or_later());
  }
  std::printf("%s checked, %d failures so far\n", table.isa, failures);
}

}  // namespace tidemill::check

#ifdef TIDEMILL_EMULATED_TABLES
namespace tidemill::avxvnni_emulated { const KernelTable& kernel_table(); }
namespace tidemill::avx512bw_emulated { const KernelTable& kernel_table(); }
namespace tidemill::avx512_emulated { const KernelTable& kernel_table(); }
namespace tidemill::avx512bf16_emulated { const KernelTable& kernel_table(); }
namespace tidemill::amx_emulated { const KernelTable& kernel_table(); }
namespace tidemill::amx_avx512_emulated { const KernelTable& kernel_table(); }
#endif

namespace tidemill::check {

// Checks emulated tables: all that can run if one is named, else those that cover what no other table
// does. Returns whether there were any.
bool check_emulated([[maybe_unused]] const char* only) {
  bool any = false;
#ifdef TIDEMILL_EMULATED_TABLES
  const auto check = [&](const KernelTable& (*table)(), bool can_run, bool needed) {
    if (!can_run || (only ? std::strcmp(only, table().isa) != 0 : !needed)) return;
    check_table(table());
    any = true;
  };
  // The code around the tiles of `amx_emulated` uses the instructions of avx512bf16.
  const bool avx2 = select_kernels("avx2"), avx512 = select_kernels("avx512");
  const bool bf16 = select_kernels("avx512bf16");
  check(avxvnni_emulated::kernel_table, avx2, !select_kernels("avxvnni"));
  check(avx512bw_emulated::kernel_table, avx2, !select_kernels("avx512bw"));
  check(avx512_emulated::kernel_table, avx2, !avx512);
  check(avx512bf16_emulated::kernel_table, avx2, !bf16);
  check(amx_avx512_emulated::kernel_table, avx2, !bf16);
  check(amx_emulated::kernel_table, bf16, true);
#endif
  return any;
}

}  // namespace tidemill::check

int main(int argc, char** argv) {
  using namespace tidemill;
  if ((argc == 3 || argc == 4) && std::strcmp(argv[1], "peak") == 0) {
    if (!select_kernels(argv[2])) {  // also requests the tile permission
      std::printf("%s cannot run here\n", argv[2]);
      return 2;
    }
    ThreadPool pool(argc == 4 ? std::atoi(argv[3]) : 1);
    std::vector<double> peaks;
    for (int i = 0; i < 25; ++i)
      peaks.push_back(check::register_peak_together(argv[2], ActType::I8, pool));
    std::printf("%.1f\n", check::median(peaks));
    return 0;
  }
  const bool benching = argc > 1 && std::strcmp(argv[1], "bench") == 0;
  const char* only = argc > 1 + benching ? argv[1 + benching] : nullptr;
  const char* filter = argc > 2 + benching ? argv[2 + benching] : "";
  const int threads = argc > 3 + benching ? std::atoi(argv[3 + benching])
                                          : int(std::thread::hardware_concurrency());
  if (only && !select_kernels(only)) {
    if (!benching && check::check_emulated(only)) return check::failures ? 1 : 0;
    std::printf("%s cannot run here\n", only);
    return 2;
  }
  for (const char* const* isa = available_isas(); *isa; ++isa) {
    if (only && std::strcmp(only, *isa) != 0) continue;
    const KernelTable& table = *select_kernels(*isa);
    if (benching) {
      check::bench(table, filter, threads);
      if (!only) break;
      continue;
    }
    check::check_table(table);
  }
  if (!only && !benching) check::check_emulated(nullptr);
  return check::failures ? 1 : 0;
}
