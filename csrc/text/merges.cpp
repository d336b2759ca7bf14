#include "text/merges.h"

#include <functional>
#include <queue>

namespace tidemill::text {
namespace {

constexpr size_t kFew = 48;  // symbols up to which looking at all pairs is faster than a queue

}  // namespace

void Merges::add(uint32_t left, uint32_t right, uint32_t whole) {
  const auto next = static_cast<uint32_t>(pairs_.size());
  pairs_.push_back({left, right, whole});
  index_.put(hash_pair(left, right), next, [&](uint32_t other) {
    return pairs_[other].left == left && pairs_[other].right == right;
  });
}

void Merges::apply(std::vector<uint32_t>& symbols) const {
  if (symbols.size() <= kFew) {
    apply_to_few(symbols);
  } else {
    apply_to_many(symbols);
  }
}

void Merges::apply_to_few(std::vector<uint32_t>& symbols) const {
  uint32_t ranks[kFew];  // of each symbol with the next one
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    symbols[best] = pairs_[ranks[best]].whole;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i - 1] = ranks[i];
    }
    if (best > 0) ranks[best - 1] = rank(symbols[best - 1], symbols[best]);
    if (best + 1 < count) ranks[best] = rank(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void Merges::apply_to_many(std::vector<uint32_t>& symbols) const {
  struct Link {
    uint32_t before, after;  // neighbours that are left
  };
  struct Candidate {
    uint32_t rank, at, left, right;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<Link> links(count);
  for (uint32_t i = 0; i < count; ++i) links[i] = {i - 1, i + 1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](uint32_t at) {
    const uint32_t next = links[at].after;
    if (next >= count) return;
    const uint32_t found = rank(symbols[at], symbols[next]);
    if (found != kNone) queue.push({found, at, symbols[at], symbols[next]});
  };
  for (uint32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const uint32_t next = links[best.at].after;
    // One whose symbols have been joined with others meanwhile is past.
    if (symbols[best.at] != best.left || next >= count || symbols[next] != best.right) continue;
    symbols[best.at] = pairs_[best.rank].whole;
    symbols[next] = kNone;
    links[best.at].after = links[next].after;
    if (links[next].after < count) links[links[next].after].before = best.at;
    offer(best.at);
    if (links[best.at].before < count) offer(links[best.at].before);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; i = links[i].after) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace tidemill::text
