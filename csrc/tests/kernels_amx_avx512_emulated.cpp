// kernels_amx_emulated.cpp with AVX-512 emulated on AVX2 as well.
#define TIDEMILL_AMX 1
#define TIDEMILL_AMX_EMULATED 1
#define TIDEMILL_AVX512 amx_avx512_emulated
#define TIDEMILL_ISA_NAME "amx-avx512-emulated"
#include "tests/avx512_emulated.h"

#include "kernels/tables/avx512.cpp"
