// The kernels of kernels_avx2.cpp with dot products of bytes in one instruction.
#define TIDEMILL_AVXVNNI 1
#include "kernels_avx2.cpp"
