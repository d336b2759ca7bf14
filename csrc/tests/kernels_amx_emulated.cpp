// The kernels written for AMX, on tiles in plain C++: a table of the check's alone.
#define TIDEMILL_AMX 1
#define TIDEMILL_AMX_EMULATED 1
#define TIDEMILL_AVX512 amx_emulated
#define TIDEMILL_ISA_NAME "amx-emulated"
#include "kernels_avx512.cpp"
