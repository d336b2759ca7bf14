// The AVX-512 kernels on AVX2 vectors; a table for the checks only.
#define TIDEMILL_AVX512 avx512_emulated
#define TIDEMILL_ISA_NAME "avx512-emulated"
#include "tests/avx512_emulated.h"

#include "kernels/tables/avx512.cpp"
