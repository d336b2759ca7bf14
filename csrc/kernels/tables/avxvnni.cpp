// The kernels of avx2.cpp with AVX-VNNI dot products.
#define TIDEMILL_AVXVNNI 1
#include "kernels/tables/avx2.cpp"
