// The processes (ranks) of one machine that compute a model together: each a part of the outputs of every
// product, which all of them then read.
//
// All ranks run the same steps, so that they meet at the same exchanges in the same order. What is exchanged
// passes through memory that they share; nothing is added up, so results do not depend on how many there
// are.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/threadpool.h"

namespace tidemill {

// Where the ranks' parts of a row begin, and the end of the last: ranks + 1 values.
using Bounds = std::vector<int64_t>;

class Group {
 public:
  static constexpr int kMostRanks = 64;
  // Bytes of the memory that the ranks share.
  static int64_t shared_bytes();

  // Maps `descriptor`, a file of shared_bytes() zeros that every rank has. Error (Config) for impossible
  // ranks, (Resource) if it cannot be mapped.
  Group(int descriptor, int rank, int ranks);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // Rank 0 alone prepares steps, samples, and returns results.
  bool leads() const { return rank_ == 0; }

  // Of rows [count, stride] of bytes this rank has those of its part; afterwards it has all
  // (`leader_only`: only rank 0 has).
  void gather(ThreadPool& pool, uint8_t* rows, int64_t stride, int64_t count, const Bounds& bounds,
              bool leader_only = false);
  // The same of floats.
  void gather(ThreadPool& pool, float* rows, int64_t stride, int64_t count, Bounds bounds,
              bool leader_only = false);
  // Of rows [count, stride] this rank has those it owns, `width` values each; afterwards it has all.
  void gather_rows(ThreadPool& pool, float* rows, int64_t stride, int64_t width,
                   const std::vector<int>& owner);
  // Every rank receives rank 0's values.
  void broadcast(ThreadPool& pool, std::vector<int32_t>& values);

  // Exchanges that wait, and all later ones, of every rank end with Error (Unavailable). On any thread.
  void fail();
  bool failed() const;

 private:
  struct Shared;
  // Returns when all ranks have come here as often as this one.
  void meet(ThreadPool& pool);
  bool all_here() const;
  void sleep_until_here();
  // The slot of the next exchange. Two take turns: a rank that writes to one has met the others after
  // they read it.
  uint8_t* slot() const;
  [[noreturn]] void throw_failed() const;

  int rank_, ranks_;
  Shared* shared_ = nullptr;
  uint32_t turn_ = 0;  // meetings so far
};

}  // namespace tidemill
