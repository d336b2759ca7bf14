// Configuration of tile registers, real or emulated by the checks.
#pragma once

#include <cstdint>

namespace tidemill::TIDEMILL_AVX512 {

// Rows and bytes per row of the eight registers (Intel SDM, LDTILECFG, palette 1).
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t row_count, int64_t row_bytes) {
    rows[tile] = uint8_t(row_count);
    bytes[tile] = uint16_t(row_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64, "as LDTILECFG reads it");

}  // namespace tidemill::TIDEMILL_AVX512
