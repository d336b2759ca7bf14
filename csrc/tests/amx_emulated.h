// simd/amx.h in plain C++, to check tile code on machines without AMX. Written from the Intel SDM's
// description of the instructions; faults where they would.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/simd/tile_shapes.h"

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
// A tile that is used must have a shape.
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
// A load clears what lies beyond the tile's shape.
template <int T>
inline void tile_load(const void* base, int64_t stride) {
  tile_zero<T>();
  for (int r = 0; r < emulated.shapes.rows[T]; ++r)
    std::memcpy(emulated.at[T][r], static_cast<const uint8_t*>(base) + r * stride,
                emulated.shapes.bytes[T]);
}
template <int T>
inline void tile_load_streaming(const void* base, int64_t stride) {
  tile_load<T>(base, stride);
}
template <int T>
inline void tile_store(void* base, int64_t stride) {
  tile_usable(T);
  for (int r = 0; r < emulated.shapes.rows[T]; ++r)
    std::memcpy(static_cast<uint8_t*>(base) + r * stride, emulated.at[T][r],
                emulated.shapes.bytes[T]);
}

// C += A * B over the common shape: step(c, a, b) for each column of a row of C and each four bytes of
// A's row. Written so that the compiler vectorises over columns.
template <int C, int A, int B, class T, class Step>
inline void tile_product(Step step) {
  const TileShapes& shapes = emulated.shapes;
  tile_usable(A), tile_usable(B), tile_usable(C);
  tile_must(shapes.rows[C] == shapes.rows[A] && shapes.bytes[C] == shapes.bytes[B]);
  tile_must(shapes.bytes[A] == shapes.rows[B] * 4);
  for (int m = 0; m < shapes.rows[C]; ++m) {
    T sums[16];
    uint32_t a[16], b[16];
    std::memcpy(sums, emulated.at[C][m], 64);
    std::memcpy(a, emulated.at[A][m], 64);
    for (int k = 0; k < shapes.rows[B]; ++k) {
      std::memcpy(b, emulated.at[B][k], 64);
      for (int n = 0; n < 16; ++n) sums[n] = step(sums[n], a[k], b[n]);
    }
    std::memcpy(emulated.at[C][m], sums, shapes.bytes[C]);
  }
}
template <int C, int A, int B>
inline void tile_dot_i8() {
  tile_product<C, A, B, int32_t>([](int32_t sum, uint32_t a, uint32_t b) {
    for (int i = 0; i < 32; i += 8) sum += int8_t(a >> i) * int8_t(b >> i);
    return sum;
  });
}
template <int C, int A, int B>
inline void tile_dot_bf16() {
  const auto value = [](uint32_t bits) {  // subnormals count as zero
    bits &= bits & 0x7f800000u ? 0xffff0000u : 0x80000000u;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  };
  tile_product<C, A, B, float>([value](float sum, uint32_t a, uint32_t b) {
    sum = std::fma(value(a << 16), value(b << 16), sum);
    return std::fma(value(a), value(b), sum);
  });
}

}  // namespace tidemill::TIDEMILL_AVX512
