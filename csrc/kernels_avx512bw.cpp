// The kernels of kernels_avx512.cpp for processors whose AVX-512 has no dot products of bytes.
#define TIDEMILL_PAIR_DOTS 1
#include "kernels_avx512.cpp"
