// The AVX-512 kernels with dot products of bf16 pairs, a table of its own.
#define TIDEMILL_BF16_DOT 1
#include "kernels_avx512.cpp"
