// The kernels of kernels_avx512.cpp for processors without VNNI.
#define TIDEMILL_PAIR_DOTS 1
#include "kernels_avx512.cpp"
