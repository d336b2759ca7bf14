// The NEON kernels with int8 matrix products and bf16 dot products, a separate table.
#define TIDEMILL_I8MM 1
#include "kernels/tables/neon.cpp"
