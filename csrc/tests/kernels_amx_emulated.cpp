// The AMX kernels with tiles emulated in plain C++; a table for the checks only.
#define TIDEMILL_AMX 1
#define TIDEMILL_AMX_EMULATED 1
#define TIDEMILL_AVX512 amx_emulated
#define TIDEMILL_ISA_NAME "amx-emulated"
#include "kernels/tables/avx512.cpp"
