// The AVX-VNNI kernels with its instruction emulated on AVX2; a table for the checks only.
#define TIDEMILL_AVXVNNI 1
#define TIDEMILL_AVXVNNI_EMULATED 1
#include "kernels/tables/avx2.cpp"
