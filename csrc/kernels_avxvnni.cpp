// The kernels of kernels_avx2.cpp with AVX-VNNI dot products.
#define TIDEMILL_AVXVNNI 1
#include "kernels_avx2.cpp"
