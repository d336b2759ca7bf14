// Which part of a model a process computes (runtime/group.h): rows of its matrices.
//
// Query, key and value projections are split by KV heads, so that a process has the K and V of its heads
// alone; all other products by panels of outputs. Norms, rotations and the residual stream are computed by
// all alike. A sum is never split, so the parts together are the whole bit for bit.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/kernels.h"
#include "runtime/group.h"

namespace tidemill {

struct Shard {
  int rank = 0, ranks = 1;

  // First of n outputs that rank r computes: a panel's first; the ranks'th is the end.
  int64_t bound(int64_t n, int r) const {
    return std::min(n, (n + kPanel - 1) / kPanel * r / ranks * kPanel);
  }
  int64_t first(int64_t n) const { return bound(n, rank); }
  int64_t part(int64_t n) const { return bound(n, rank + 1) - bound(n, rank); }
  Bounds bounds(int64_t n) const {
    Bounds all;
    for (int r = 0; r <= ranks; ++r) all.push_back(bound(n, r));
    return all;
  }
  // Parts of `width` each.
  Bounds equal(int64_t width) const {
    Bounds all;
    for (int r = 0; r <= ranks; ++r) all.push_back(r * width);
    return all;
  }
};

}  // namespace tidemill
