// The NEON kernels with matrix products of int8 and dot products of bf16 pairs, a table of its own.
#define TIDEMILL_I8MM 1
#include "kernels_neon.cpp"
