// As kernels_amx_emulated.cpp, and what surrounds the tiles on vectors of AVX2.
#define TIDEMILL_AMX 1
#define TIDEMILL_AMX_EMULATED 1
#define TIDEMILL_AVX512 amx_avx512_emulated
#define TIDEMILL_ISA_NAME "amx-avx512-emulated"
#include "tests/avx512_emulated.h"

#include "kernels_avx512.cpp"
