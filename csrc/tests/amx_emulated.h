// simd/amx.h in plain C++, so that what is written for tiles is checked where there are none.
// Written from the Intel SDM's description of the instructions; faults where they would.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "simd/tile_shapes.h"

namespace tidemill::TIDEMILL_AVX512 {

struct EmulatedTiles {
  TileShapes shapes;
  bool configured = false;
  uint8_t at[8][16][64];
};
inline thread_local EmulatedTiles emulated;

inline void tile_must(bool holds) {
  if (!holds) std::abort();
}
// A tile that is used has a shape.
inline void tile_usable(int tile) {
  tile_must(emulated.configured && emulated.shapes.rows[tile] && emulated.shapes.bytes[tile]);
}

inline void tiles_configure(const TileShapes& shapes) {
  for (int i = 0; i < 8; ++i) {
    tile_must(shapes.rows[i] <= 16 && shapes.bytes[i] <= 64 && shapes.bytes[i] % 4 == 0);
    tile_must(!shapes.rows[i] == !shapes.bytes[i]);
  }
  emulated.shapes = shapes;
  emulated.configured = true;
  std::memset(emulated.at, 0, sizeof emulated.at);
}
inline void tiles_release() { emulated.configured = false; }

template <int T>
inline void tile_zero() {
  tile_usable(T);
  std::memset(emulated.at[T], 0, sizeof emulated.at[T]);
}
// What lies beyond a tile's shape is zero after a load.
template <int T>
inline void tile_load(const void* base, int64_t stride) {
  tile_zero<T>();
  for (int r = 0; r < emulated.shapes.rows[T]; ++r)
    std::memcpy(emulated.at[T][r], static_cast<const uint8_t*>(base) + r * stride,
                emulated.shapes.bytes[T]);
}
template <int T>
inline void tile_store(void* base, int64_t stride) {
  tile_usable(T);
  for (int r = 0; r < emulated.shapes.rows[T]; ++r)
    std::memcpy(static_cast<uint8_t*>(base) + r * stride, emulated.at[T][r],
                emulated.shapes.bytes[T]);
}

// C += A * B over the shapes that the three must have in common: step(c, a, b) for each column of a
// row of C and each four bytes of A's row.
template <int C, int A, int B, class T, class Step>
inline void tile_product(Step step) {
  const TileShapes& shapes = emulated.shapes;
  tile_usable(A), tile_usable(B), tile_usable(C);
  tile_must(shapes.rows[C] == shapes.rows[A] && shapes.bytes[C] == shapes.bytes[B]);
  tile_must(shapes.bytes[A] == shapes.rows[B] * 4);
  for (int m = 0; m < shapes.rows[C]; ++m)
    for (int k = 0; k < shapes.rows[B]; ++k)
      for (int n = 0; n < shapes.bytes[C] / 4; ++n) {
        T sum;
        std::memcpy(&sum, emulated.at[C][m] + 4 * n, 4);
        sum = step(sum, emulated.at[A][m] + 4 * k, emulated.at[B][k] + 4 * n);
        std::memcpy(emulated.at[C][m] + 4 * n, &sum, 4);
      }
}
template <int C, int A, int B>
inline void tile_dot_i8() {
  tile_product<C, A, B, int32_t>([](int32_t sum, const uint8_t* a, const uint8_t* b) {
    for (int i = 0; i < 4; ++i) sum += int8_t(a[i]) * int8_t(b[i]);
    return sum;
  });
}
template <int C, int A, int B>
inline void tile_dot_bf16() {
  const auto value = [](const uint8_t* p) {  // subnormals count as zero
    uint32_t bits = uint32_t(p[0]) << 16 | uint32_t(p[1]) << 24;
    if (!(bits & 0x7f800000u)) bits &= 0x80000000u;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  };
  tile_product<C, A, B, float>([value](float sum, const uint8_t* a, const uint8_t* b) {
    sum = std::fma(value(a), value(b), sum);
    return std::fma(value(a + 2), value(b + 2), sum);
  });
}

}  // namespace tidemill::TIDEMILL_AVX512
