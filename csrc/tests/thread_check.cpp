// thread_check [rounds]: stress test of the thread pool, the step queue and the packing latch from
// several threads. Meant for the thread sanitizer (`make sanitizers`); its own checks are of results
// and order.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "memory/memory.h"
#include "runtime/error.h"
#include "runtime/latch.h"
#include "runtime/prefault.h"
#include "runtime/profile.h"
#include "runtime/threadpool.h"
#include "step/queue.h"

namespace {

int failures = 0;

void expect(bool held, const char* what) {
  if (held) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// Every item of every loop runs once, for any number of threads and any grain.
void check_pool(int threads, int rounds) {
  tidemill::ThreadPool pool(threads);
  std::atomic<bool> watching{true};
  std::thread watcher([&] {
    uint64_t last = 0;
    while (watching.load()) {
      const uint64_t now = pool.progress();
      if (now < last) std::abort();
      last = now;
    }
  });
  for (int round = 0; round < rounds; ++round) {
    const int64_t items = 1 + round * 7 % 97, grain = 1 + round % 5;
    std::vector<int> seen(size_t(items), 0);  // not atomic: two threads on one item are a race
    std::atomic<int> beyond{0};
    const auto see = [&](int64_t begin, int64_t end, int) {
      if (begin % grain != 0 || (end % grain != 0 && end != items)) ++beyond;
      if (round % 2 == 0 && end - begin > grain) ++beyond;
      for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
    };
    round % 2 == 0 ? pool.run(items, grain, see) : pool.run_tapered(items, grain, see);
    for (int count : seen) expect(count == 1, "an item of a loop ran once");
    expect(beyond == 0, "a range is of whole chunks, and of one where loops are not tapered");
    int64_t covered = 0;
    for (int i = 0; i < threads; ++i) {
      const auto [first, end] = pool.share(items, i);
      expect(first == covered && end >= first && end - first <= items / threads + 1,
             "shares lie side by side and are alike");
      covered = end;
    }
    expect(covered == items, "shares are all chunks");
    if (round % 50 == 0) {
      bool thrown = false;
      try {
        pool.run(8, 1, [](int64_t begin, int64_t, int) {
          if (begin == 5) throw std::runtime_error("on purpose");
        });
      } catch (const std::runtime_error&) {
        thrown = true;
      }
      expect(thrown, "an exception of a body is rethrown");
    }
    if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  watching = false;
  watcher.join();
}

// A share is prefetched line by line in the given order, up to its capacity; the ranges may change at
// any time.
void check_idle_prefetcher(int rounds) {
  std::vector<uint8_t> bytes(1 << 18);
  tidemill::IdlePrefetcher prefetcher(2);
  const auto asked = [&](int thread) {
    int times = 0;
    while (prefetcher.prefetch_some(thread)) ++times;
    return times;
  };
  expect(asked(0) == 0, "nothing is prefetched without a request");
  expect(prefetcher.add(0, bytes.data(), 1024), "there is room for a kilobyte");
  expect(asked(1) == 0, "a share is a thread's own");
  expect(asked(0) == 4, "a kilobyte is prefetched four lines at a time");
  expect(prefetcher.add(0, bytes.data() + 4096, 64) && asked(0) == 1, "an added range is prefetched");
  expect(!prefetcher.add(0, bytes.data(), 1 << 18), "a share has an end");
  expect(asked(0) == ((128 << 10) - 1024 - 64 + 255) / 256, "what fits is prefetched");
  prefetcher.clear();
  expect(asked(0) == 0, "nothing is prefetched after clear()");

  tidemill::ThreadPool pool(4);
  for (int round = 0; round < rounds; ++round) {
    pool.idle_prefetcher().clear();
    for (int thread = 0; thread < 4; ++thread) {
      for (int part = 0; part < round % 9; ++part) {
        pool.idle_prefetcher().add(thread, bytes.data() + 4096 * ((round + part) % 32), 64 * (round % 70));
      }
    }
    std::atomic<int64_t> sum{0};
    pool.run(9, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
    expect(sum == 36, "a loop is complete, whatever is prefetched concurrently");
  }
}

// Concurrent callers take turns, each running all of its items.
void check_turns(int rounds) {
  tidemill::ThreadPool pool(3);
  const auto call = [&](int64_t items) {
    for (int round = 0; round < rounds; ++round) {
      std::vector<int> seen(size_t(items), 0);
      pool.run(items, 1, [&](int64_t begin, int64_t, int) { ++seen[size_t(begin)]; });
      for (int count : seen) expect(count == 1, "an item of a caller's loop ran once");
    }
  };
  std::thread other([&] { call(5); });
  call(1);
  call(16);
  other.join();
}

// Every loop of the profiled thread is counted, none of other callers, and the time of a step whole.
void check_profile(int rounds) {
  tidemill::ThreadPool pool(3);
  std::atomic<bool> more{true};
  std::thread other([&] {
    while (more) pool.run(7, 1, [](int64_t, int64_t, int) {});
  });
  for (int round = 0; round < rounds; ++round) {
    tidemill::Profile profile(20);
    pool.count_in(&profile);
    std::atomic<int64_t> sum{0};
    {
      const tidemill::ProfiledStep step(pool.profile(), 1, 2);
      const tidemill::ProfiledPart part(pool.profile(), tidemill::Part::Head, 3);
      profile.next({tidemill::Kernel::Product, 1, 2, true, 30, 1});
      profile.next({tidemill::Kernel::Product, 2, 2, true, 10, 1});
      pool.run(9, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
      pool.run(1, 1, [&](int64_t, int64_t, int) { ++sum; });
    }
    pool.count_in(nullptr);
    int64_t ticks = 0, products = 0, elementwise = 0;
    for (const auto& of : profile.counters()) {
      ticks += of.ticks;
      if (of.work.kernel == tidemill::Kernel::Product) products += of.calls;
      if (of.work.kernel == tidemill::Kernel::Elementwise) elementwise += of.calls;
    }
    expect(sum == 37, "a loop that is counted is complete");
    expect(products == 2 && elementwise == 1, "the step's loops are counted, and no others");
    expect(ticks == profile.step_ticks && profile.steps == 1, "a step's time is counted once");
  }
  more = false;
  other.join();
}

// Steps read, in layer order, what another thread packs through the same pool, and never before it is
// ready. Some packers fail midway, some are closed by a third thread.
void check_packing(int rounds) {
  constexpr int64_t kLayers = 12, kValues = 64;
  for (int round = 0; round < rounds; ++round) {
    tidemill::ThreadPool pool(1 + round % 3);
    tidemill::Latch packed;
    std::vector<int> values(kLayers * kValues, -1);  // not atomic: reading too early is a race
    const int64_t last = round % 4 == 3 ? round % kLayers : kLayers;  // where packing fails
    const auto give_up = [&](const char* why) {
      packed.fail(std::make_exception_ptr(tidemill::internal_error(why)));
    };
    std::thread packer([&] {
      for (int64_t layer = 0; layer < last; ++layer) {
        int* const into = values.data() + layer * kValues;
        pool.run(kValues, 8, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) into[i] = int(layer);
        });
        packed.raise(layer + 1);
        if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      if (last < kLayers) give_up("the file is damaged");
    });
    std::thread closer([&] {
      if (round % 6 != 5) return;
      std::this_thread::sleep_for(std::chrono::microseconds(20 * (round % 10)));
      give_up("closed");
    });
    const auto step = [&] {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        try {
          packed.await(layer + 1);
        } catch (const tidemill::Error&) {
          expect(last < kLayers || round % 6 == 5, "nobody waits in vain for what comes");
          return;
        }
        std::atomic<int64_t> sum{0};
        pool.run(kValues, 8, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) sum += values[size_t(layer * kValues + i)];
        });
        expect(sum == layer * kValues, "what is packed is whole");
      }
      expect(last == kLayers, "a step ends when all that it needs was packed");
    };
    step();
    step();
    packer.join();
    closer.join();
  }
}

tidemill::StepInput input_of(int64_t id) {
  tidemill::StepInput input;
  input.step_id = id;
  input.token_ids = {int32_t(id)};
  input.row_start = {0, 1};
  input.context_len = {1};
  input.logits = {tidemill::kLogitsLast};
  input.sample = {1};
  input.await_mask = {0};
  return input;
}

const auto no_check = [](const tidemill::StepInput&, const std::vector<uint8_t>*) {};

// Steps run in order and keep their own results, including released and failing ones.
// `concurrent`: a step may begin while the one before waits for another process.
void check_queue(int rounds, bool concurrent) {
  tidemill::ThreadPool pool(3);
  int64_t begun = -1, last = -1;  // used by the driver thread only
  tidemill::StepQueue::Run run;
  if (concurrent) {
    run.begin = [&](tidemill::Step& step) {
      expect(step.input.step_id > begun, "steps begin in order");
      begun = step.input.step_id;
    };
    run.ready = [&](int milliseconds) { return milliseconds > 0 || begun % 3 == 0; };
  }
  run.finish = [&](tidemill::Step& step) {
    expect(step.input.step_id > last, "steps run in order");
    last = step.input.step_id;
    if (last % 17 == 5) throw std::runtime_error("on purpose");
    std::atomic<int64_t> sum{0};
    pool.run(16, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
    tidemill::StepOutput output;
    output.sampled = {int32_t(last + sum.load())};
    return output;
  };
  tidemill::StepQueue queue(run);
  for (int64_t id = 0; id < rounds; id += 2) {
    auto first = queue.submit(input_of(id), 8, no_check);
    auto second = queue.submit(input_of(id + 1), 8, no_check);
    bool refused = false;
    try {
      queue.submit(input_of(id + 2), 8, no_check);
    } catch (const tidemill::Error&) {
      refused = true;
    }
    // Both of the first two may be done by now, but until they are taken they are outstanding.
    expect(refused, "a third outstanding step is refused");
    bool first_failed = false;
    for (auto& [step, number] : {std::pair{first, id}, std::pair{second, id + 1}}) {
      if (number % 6 == 1 && !first_failed) {
        step->release();
        while (!step->done()) std::this_thread::yield();
        continue;
      }
      const bool fails = number % 17 == 5 || first_failed;
      bool failed = false;
      try {
        expect(step->take().sampled.at(0) == number + 120, "a step's result is its own");
      } catch (const std::exception&) {
        failed = true;
      }
      expect(failed == fails, "a step fails when it or the one before it does");
      first_failed = failed;
    }
  }
}

// Closing while steps run and wait, and while somebody waits for them.
void check_close(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    tidemill::StepQueue::Run run;
    run.finish = [&](tidemill::Step&) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      return tidemill::StepOutput{};
    };
    tidemill::StepQueue queue(run);
    auto first = queue.submit(input_of(0), 8, no_check);
    auto second = queue.submit(input_of(1), 8, no_check);
    std::thread waiter([&] {
      for (auto& step : {first, second}) {
        try {
          step->take();
        } catch (const std::exception&) {
        }
      }
    });
    if (round % 2) std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
    queue.close();
    waiter.join();
    expect(queue.closed(), "a closed queue says so");
  }
}

// Pages are prefaulted ahead of their writers, and written data is preserved.
void check_prefault(int rounds) {
  constexpr int64_t kLayers = 3, kStride = 3 << 16, kBlocks = 200;
  for (int round = 0; round < rounds; ++round) {
    const tidemill::Region region(kLayers * kBlocks * kStride, "a test");
    std::vector<tidemill::Prefault::Array> arrays;
    for (int64_t l = 0; l < kLayers; ++l)
      arrays.push_back({region.data() + l * kBlocks * kStride, kStride});
    tidemill::Prefault ahead({{arrays, kBlocks}});
    for (int64_t block = 0; block < kBlocks; block += 1 + round % 7) {
      ahead.reached(0, block);
      for (const auto& array : arrays)
        for (int64_t i = 0; i < kStride; i += 1024) array.base[block * kStride + i] = uint8_t(block);
      if (round == 0 && block == 50)
        while (ahead.taken(0) <= 60) std::this_thread::yield();  // or this never ends
    }
    for (int64_t block = 0; block < kBlocks; block += 1 + round % 7)
      for (const auto& array : arrays)
        for (int64_t i = 0; i < kStride; i += 1024)
          if (array.base[block * kStride + i] != uint8_t(block))
            return expect(false, "taking a page changes nothing in it");
  }
}

// Without steps, as many blocks as the last burst came to are prefaulted, a quarter of the cache at
// most, and nothing once their pages were given back.
void check_prefault_idle() {
  constexpr int64_t kStride = 1 << 20, kBlocks = 64, kUnit = 2;
  const tidemill::Region region(kBlocks * kStride, "a test");
  tidemill::Prefault ahead({{{{region.data(), kStride}}, kBlocks}}, std::chrono::milliseconds(20));
  const auto settle = [&](int64_t wanted) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ahead.taken(0) < wanted && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return ahead.taken(0);
  };
  expect(settle(0) == 0, "nothing is taken before the first step");
  ahead.reached(0, 0);
  expect(settle(kUnit) == kUnit, "what is needed soon is enough for a small load");
  ahead.reached(0, 9);
  expect(settle(20) == 20, "a burst's nine blocks are taken again, in whole units");
  ahead.given_back(0, 4);
  expect(settle(6) == 6, "what is needed soon is taken after pages were given back");
  ahead.reached(0, 39);
  expect(settle(40 + kBlocks / 4) == 40 + kBlocks / 4, "a quarter is taken at most");
  ahead.reached(0, kBlocks - 1);
  expect(settle(kBlocks) == kBlocks, "the whole cache and no more is taken");
}

// Blocks beyond a limit are not prefaulted until it is raised.
void check_prefault_limit() {
  constexpr int64_t kStride = 1 << 20, kBlocks = 64;
  const tidemill::Region region(kBlocks * kStride, "a test");
  tidemill::Prefault ahead({{{{region.data(), kStride}}, kBlocks}}, std::chrono::milliseconds(20));
  const auto settle = [&](int64_t wanted) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ahead.taken(0) < wanted && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    return ahead.taken(0);
  };
  ahead.reached(0, 29);
  expect(settle(46) == 46, "a quarter beyond what was reached");
  ahead.limit(0, 15);
  expect(settle(15) == 15 && ahead.limit(0) == 15, "no more than the limit, which is within a unit");
  ahead.reached(0, 40);  // a block that is still in use
  expect(settle(15) == 15, "nor when a step uses what is beyond it");
  ahead.limit(0, kBlocks);
  expect(settle(58) == 58, "and all once it is raised");
}

// Huge pages within a range are given back: they read as zeros, and what is beside them stays.
void check_give_back() {
  constexpr int64_t kHuge = 2 << 20;
  const tidemill::Region region(4 * kHuge, "a test");
  std::memset(region.data(), 7, static_cast<size_t>(4 * kHuge));
  tidemill::Region::give_back(region.data() + 1, region.data() + 3 * kHuge + 1);
  const auto all = [&](int64_t begin, int64_t end, uint8_t value) {
    return std::all_of(region.data() + begin, region.data() + end,
                       [&](uint8_t byte) { return byte == value; });
  };
  expect(all(0, kHuge, 7) && all(3 * kHuge, 4 * kHuge, 7), "pages that are not whole stay");
#ifdef __linux__
  expect(all(kHuge, 3 * kHuge, 0), "whole pages are given back");
#endif
  tidemill::Region::give_back(region.data() + kHuge - 1, region.data() + kHuge + 1);
  expect(all(0, kHuge, 7), "a range without a whole page changes nothing");
  tidemill::Region::give_back(region.data() + kHuge / 2 + 1, region.data() + kHuge, true);
  expect(all(0, kHuge / 2 + 1, 7), "small pages that are not whole stay");
#ifdef __linux__
  expect(all(kHuge * 3 / 4, kHuge, 0), "small pages are given back where that is asked for");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
  for (int threads : {1, 2, 4}) check_pool(threads, rounds);
  check_idle_prefetcher(rounds);
  check_turns(rounds);
  check_profile(rounds / 4);
  check_packing(rounds / 10);
  for (const bool concurrent : {false, true}) check_queue(rounds, concurrent);
  check_close(50);
  check_prefault(20);
  check_prefault_idle();
  check_prefault_limit();
  check_give_back();
  std::printf("threads checked, %d failures\n", failures);
  return failures ? 1 : 0;
}
