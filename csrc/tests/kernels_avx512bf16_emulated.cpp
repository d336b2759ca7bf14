// The AVX-512 kernels with bf16 dot products on AVX2 vectors; a table for the checks only.
#define TIDEMILL_BF16_DOT 1
#define TIDEMILL_AVX512 avx512bf16_emulated
#define TIDEMILL_ISA_NAME "avx512bf16-emulated"
#include "tests/avx512_emulated.h"

#include "kernels/tables/avx512.cpp"
