// The kernels written for AVX-VNNI, its one instruction by those of AVX2: a table of the check's alone.
#define TIDEMILL_AVXVNNI 1
#define TIDEMILL_AVXVNNI_EMULATED 1
#include "kernels_avx2.cpp"
