// Takes the pages of a KV cache shortly before a step writes them for the first time.
//
// A cache is far larger than what is used of it at first, so its pages come when they are touched.
// Blocks are handed out in ascending order and every layer has its own array of them, so that all
// layers cross into a new huge page in the same step: a model of 28 layers then waits for 56 MB of
// cleared pages, 5 ms each on a virtual machine whose host has to find them too. A thread of lowest
// priority does that one such crossing ahead, page by page with long rests between. Prompts come to
// fresh pages faster than that, so while no step is computed it goes on: as many blocks as the largest
// recent burst of requests came to are taken for the next one. `give_back` ends that: the load was long
// ago. Touching writes nothing: it is an atomic "or 0".
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tidemill {

class Prefault {
 public:
  struct Array {  // the blocks of one layer
    uint8_t* base;
    int64_t stride;
  };
  struct Group {
    std::vector<Array> arrays;
    int64_t blocks;
  };

  // The memory must outlive it. No step for so long: none is computed.
  explicit Prefault(std::vector<Group> groups,
                    std::chrono::milliseconds quiet = std::chrono::seconds(2));
  ~Prefault();
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // A step begins, and is about to use blocks up to this one. From any thread, cheap.
  void reached(int64_t group, int64_t block);

  // Blocks from this one on hold nothing, and their pages were given back: the load until now is
  // forgotten. Not beside a step.
  void given_back(int64_t group, int64_t first);

  // Blocks from this one on are not handed out: their pages are not taken. Not beside a step.
  void limit(int64_t group, int64_t blocks);
  int64_t limit(int64_t group) const;

  // Blocks below this one were taken (tests).
  int64_t taken(int64_t group) const;

 private:
  struct Progress {
    Group group;
    int64_t unit;  // blocks whose pages are taken together: a huge page of the widest layer
    int64_t most;  // blocks that are taken for a burst at most
    std::atomic<int64_t> limit{0};
    std::atomic<int64_t> reached{-1};
    std::atomic<int64_t> taken{0};
    // Under the mutex: what was reached when no step was computed last, and the most blocks that were
    // come to between two such times.
    int64_t settled = -1, burst = 0;

    int64_t wanted(bool idle) const;
    void settle();
  };

  void work();
  Progress* behind(bool idle);
  bool unsettled() const;
  void take(Progress& progress, int rest, const uint64_t* steps);

  std::vector<std::unique_ptr<Progress>> groups_;
  const std::chrono::milliseconds quiet_;
  std::atomic<uint64_t> steps_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};  // set under the mutex
  std::thread thread_;
};

}  // namespace tidemill
