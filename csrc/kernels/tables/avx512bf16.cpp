// The AVX-512 kernels with bf16 dot products, a separate table.
#define TIDEMILL_BF16_DOT 1
#include "kernels/tables/avx512.cpp"
