// The AVX-512 kernels without VNNI on AVX2 vectors; a table for the checks only.
#define TIDEMILL_PAIR_DOTS 1
#define TIDEMILL_AVX512 avx512bw_emulated
#define TIDEMILL_ISA_NAME "avx512bw-emulated"
#include "tests/avx512_emulated.h"

#include "kernels/tables/avx512.cpp"
