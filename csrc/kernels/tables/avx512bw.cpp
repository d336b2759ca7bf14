// The kernels of avx512.cpp for processors without VNNI.
#define TIDEMILL_PAIR_DOTS 1
#include "kernels/tables/avx512.cpp"
