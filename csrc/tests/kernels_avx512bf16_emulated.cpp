// The AVX-512 kernels with dot products of bf16 pairs on vectors of AVX2: a table of the check's.
#define TIDEMILL_BF16_DOT 1
#define TIDEMILL_AVX512 avx512bf16_emulated
#define TIDEMILL_ISA_NAME "avx512bf16-emulated"
#include "tests/avx512_emulated.h"

#include "kernels_avx512.cpp"
