// The AVX-512 kernels with matrix products by AMX tiles, a separate table.
#define TIDEMILL_AMX 1
#include "kernels/tables/avx512.cpp"
