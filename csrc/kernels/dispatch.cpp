// Selects the kernel table: instruction sets in this build that this machine can run.
#include <cstring>

#include "kernels/kernels.h"

#if (defined(__x86_64__) || defined(__i386__)) && !defined(TIDEMILL_PORTABLE)
#include <cpuid.h>
#define TIDEMILL_X86 1
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#ifdef __aarch64__
#define TIDEMILL_ARM64 1
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

namespace tidemill {

namespace portable { const KernelTable& kernel_table(); }
#ifdef TIDEMILL_X86
namespace avx2 { const KernelTable& kernel_table(); }
namespace avxvnni { const KernelTable& kernel_table(); }
namespace avx512bw { const KernelTable& kernel_table(); }
namespace avx512 { const KernelTable& kernel_table(); }
namespace avx512bf16 { const KernelTable& kernel_table(); }
namespace amx { const KernelTable& kernel_table(); }
#endif
#ifdef TIDEMILL_ARM64
namespace neon { const KernelTable& kernel_table(); }
namespace i8mm { const KernelTable& kernel_table(); }
#endif

namespace {

#ifdef TIDEMILL_X86
struct CpuFeatures {
  bool avx2 = false, avxvnni = false, avx512bw = false, avx512 = false, bf16 = false, amx = false;
  bool amd = false;
  uint32_t family = 0;
};

uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

// Linux grants the AMX tile registers on request; threads inherit the permission.
bool tiles_permitted() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool all_bits(uint32_t value, uint32_t mask) { return (value & mask) == mask; }

CpuFeatures detect() {
  CpuFeatures found;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  if (!all_bits(c, fma | osxsave | avx | f16c)) return found;
  found.family = a >> 8 & 15;
  if (found.family == 15) found.family += a >> 20 & 255;
  // The CPU has the instructions; the operating system must also save their registers.
  const uint64_t state = enabled_state();
  if ((state & 0x6) != 0x6) return found;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.avx2 = all_bits(b, 1u << 5);
  const uint32_t amx_edx = d;
  const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  const bool wide = all_bits(b, f | dq | bw | vl) && (state & 0xe0) == 0xe0;
  found.avx512bw = found.avx2 && wide;
  found.avx512 = found.avx512bw && all_bits(c, vnni);
  uint32_t a1 = 0, b1, c1, d1;
  const bool more = a >= 1 && __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
  const bool bf16 = more && all_bits(a1, 1u << 5);
  found.avxvnni = found.avx2 && more && all_bits(a1, 1u << 4);
  found.bf16 = found.avx512 && bf16;
  const uint32_t amx_bf16 = 1u << 22, fp16 = 1u << 23, amx_tile = 1u << 24, amx_int8 = 1u << 25;
  found.amx = found.bf16 && all_bits(amx_edx, amx_bf16 | fp16 | amx_tile | amx_int8) &&
              (state & 0x60000) == 0x60000 && tiles_permitted();
  uint32_t top, vendor_b, vendor_c, vendor_d;
  // "AuthenticAMD": ebx holds the first four letters.
  found.amd = __get_cpuid(0, &top, &vendor_b, &vendor_c, &vendor_d) && vendor_b == 0x68747541u;
  return found;
}
#endif

#ifdef TIDEMILL_ARM64
struct CpuFeatures {
  bool dotprod = false, i8mm = false, bf16 = false;
};

#ifdef __APPLE__
bool reports(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

CpuFeatures detect() {
  CpuFeatures found;
#if defined(__linux__)
  // By number (arch/arm64/include/uapi/asm/hwcap.h), because older headers lack some names.
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  found.dotprod = (first >> 20) & 1;
  found.i8mm = (second >> 13) & 1;
  found.bf16 = (second >> 14) & 1;
#elif defined(__APPLE__)
  found.dotprod = reports("hw.optional.arm.FEAT_DotProd");
  found.i8mm = reports("hw.optional.arm.FEAT_I8MM");
  found.bf16 = reports("hw.optional.arm.FEAT_BF16");
#endif
  return found;
}
#endif

// Tables that can run here, best first.
struct Available {
  const KernelTable* tables[8] = {};  // terminated by null
  const char* names[8] = {};
  bool is_zen5_or_later = false;

  Available() {
    int count = 0;
#ifdef TIDEMILL_X86
    const CpuFeatures cpu = detect();
    is_zen5_or_later = cpu.amd && cpu.family >= 26;
    if (cpu.amx) tables[count++] = &amx::kernel_table();
    // The order of these two was measured: see simd/avx512.h.
    if (cpu.bf16 && cpu.amd) tables[count++] = &avx512bf16::kernel_table();
    if (cpu.avx512) tables[count++] = &avx512::kernel_table();
    if (cpu.bf16 && !cpu.amd) tables[count++] = &avx512bf16::kernel_table();
    if (cpu.avxvnni) tables[count++] = &avxvnni::kernel_table();
    if (cpu.avx512bw) tables[count++] = &avx512bw::kernel_table();
    if (cpu.avx2) tables[count++] = &avx2::kernel_table();
#endif
#ifdef TIDEMILL_ARM64
    const CpuFeatures cpu = detect();
    if (cpu.dotprod && cpu.i8mm && cpu.bf16) tables[count++] = &i8mm::kernel_table();
    if (cpu.dotprod) tables[count++] = &neon::kernel_table();
#endif
    tables[count++] = &portable::kernel_table();
    for (int i = 0; i < count; ++i) names[i] = tables[i]->isa;
  }
};

Available& available() {
  static Available found;
  return found;
}

}  // namespace

const KernelTable* select_kernels(const char* isa_or_null) {
  if (!isa_or_null) return available().tables[0];
  for (const KernelTable* const* table = available().tables; *table; ++table)
    if (std::strcmp((*table)->isa, isa_or_null) == 0) return *table;
  return nullptr;
}

bool is_zen5_or_later() { return available().is_zen5_or_later; }

void assume_zen5_or_later(bool more) { available().is_zen5_or_later = more; }

const char* const* available_isas() { return available().names; }

}  // namespace tidemill
