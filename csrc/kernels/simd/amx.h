// AMX tile registers, as far as the kernels use them. Registers are selected at compile time by inline
// assembly; the "memory" clobber keeps the compiler from moving ordinary loads and stores across it.
#pragma once
#include "kernels/simd/tile_shapes.h"

namespace tidemill::TIDEMILL_AVX512 {

// Also clears all registers.
static inline void tiles_configure(const TileShapes& shapes) {
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
}
// After this, a context switch need not save the tiles.
static inline void tiles_release() { __asm__ volatile("tilerelease" ::: "memory"); }

template <int T>
static inline void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
static inline void tile_load(const void* base, int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(base), "r"(stride) : "memory");
}
// The same for streaming data: it is not kept in L1.
template <int T>
static inline void tile_load_streaming(const void* base, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(base), "r"(stride) : "memory");
}
template <int T>
static inline void tile_store(void* base, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(base), "r"(stride) : "memory");
}
// C += A * B, int8: A [rows][k], B [k / 4][columns][4].
template <int C, int A, int B>
static inline void tile_dot_i8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// C += A * B for bf16 pairs: A [rows][k], B [k / 2][columns][2]. Pairs are added in ascending order;
// subnormals count as zero, and rounding is to nearest even regardless of MXCSR.
template <int C, int A, int B>
static inline void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace tidemill::TIDEMILL_AVX512
