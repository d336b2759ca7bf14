#include "text/repeats.h"

#include <algorithm>

namespace tidemill::text {

namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kRoot = 0;
constexpr size_t kFirstSlots = 64;
// Suffixes whose occurrences are counted at each token, from the longest on. Where a text repeats itself
// endlessly there are as many as tokens; counting all of them would take quadratic time.
constexpr int kCounted = 64;

}  // namespace

RepeatIndex::RepeatIndex(int64_t most) : most_(std::max<int64_t>(most, 2)) { clear(); }

void RepeatIndex::clear() {
  text_.clear();
  states_.clear();
  edges_.clear();
  slots_.assign(kFirstSlots, kNone);
  states_.push_back({0, kRoot, 0, kNone, kNone});
  last_ = kRoot;
}

int64_t RepeatIndex::bytes() const {
  return static_cast<int64_t>(text_.capacity() * sizeof(int32_t) + states_.capacity() * sizeof(State) +
                              edges_.capacity() * sizeof(Edge) + slots_.capacity() * sizeof(int32_t));
}

void RepeatIndex::extend(const int32_t* tokens, int64_t count) {
  if (count > most_) {
    clear();
    tokens += count - most_;
    count = most_;
  }
  if (this->tokens() + count > most_) {
    const std::vector<int32_t> kept(text_.end() - std::min(this->tokens(), std::max<int64_t>(most_ / 2 - count, 0)),
                                    text_.end());
    clear();
    for (const int32_t token : kept) append(token);
  }
  for (int64_t i = 0; i < count; ++i) append(tokens[i]);
}

void RepeatIndex::separate() {
  const int32_t token = --separators_;
  extend(&token, 1);
}

int32_t RepeatIndex::add_state(int32_t length, int32_t count) {
  states_.push_back({length, kRoot, count, kNone, kNone});
  return static_cast<int32_t>(states_.size()) - 1;
}

void RepeatIndex::append(int32_t token) {
  text_.push_back(token);
  const int32_t before = last_;
  const int32_t whole = add_state(states_[last()].length + 1, 1);
  int32_t p = before;
  const Edge* edge = nullptr;
  for (;; p = states_[static_cast<size_t>(p)].link) {
    edge = find(p, token);
    if (edge != nullptr) break;
    add_edge(p, token, whole);
    if (p == kRoot) break;
  }
  if (edge != nullptr) {
    const int32_t target = edge->target;
    const bool alone = states_[static_cast<size_t>(p)].length + 1 == states_[static_cast<size_t>(target)].length;
    const int32_t link = alone ? target : split(p, token, target);
    states_[static_cast<size_t>(whole)].link = link;
  }
  last_ = whole;
  count_up(before, token);
}

// A state of its own for those strings of `target` that are the suffixes of p's followed by the token.
int32_t RepeatIndex::split(int32_t p, int32_t token, int32_t target) {
  const State old = states_[static_cast<size_t>(target)];
  const int32_t made = add_state(states_[static_cast<size_t>(p)].length + 1, old.count);
  states_[static_cast<size_t>(made)].link = old.link;
  states_[static_cast<size_t>(made)].frequent = old.frequent;
  for (int32_t e = old.edges; e != kNone; e = edges_[static_cast<size_t>(e)].next) {
    const Edge edge = edges_[static_cast<size_t>(e)];
    add_edge(made, edge.token, edge.target);
  }
  states_[static_cast<size_t>(target)].link = made;
  for (;; p = states_[static_cast<size_t>(p)].link) {
    Edge* const edge = find(p, token);
    if (edge == nullptr || edge->target != target) break;
    edge->target = made;
    if (p == kRoot) break;
  }
  return made;
}

// The text's suffixes occur once more, and those before the token are followed by it once more.
void RepeatIndex::count_up(int32_t before, int32_t token) {
  int32_t v = states_[last()].link;
  for (int n = 0; n < kCounted && v != kRoot; ++n, v = states_[static_cast<size_t>(v)].link) {
    ++states_[static_cast<size_t>(v)].count;
  }
  int32_t p = before;
  for (int n = 0; n < kCounted && p != kRoot; ++n, p = states_[static_cast<size_t>(p)].link) {
    State& state = states_[static_cast<size_t>(p)];
    if (state.frequent == kNone) {
      state.frequent = token;
      continue;
    }
    const int32_t now = states_[static_cast<size_t>(find(p, token)->target)].count;
    const int32_t most = states_[static_cast<size_t>(find(p, state.frequent)->target)].count;
    if (now >= most) state.frequent = token;
  }
}

std::vector<int32_t> RepeatIndex::propose(int64_t count) const {
  std::vector<int32_t> tokens;
  int32_t v = states_[last()].link;
  while (static_cast<int64_t>(tokens.size()) < count) {
    while (v != kRoot && states_[static_cast<size_t>(v)].frequent == kNone) {
      v = states_[static_cast<size_t>(v)].link;
    }
    if (v == kRoot) break;
    const int32_t token = states_[static_cast<size_t>(v)].frequent;
    if (token < 0) break;
    tokens.push_back(token);
    v = find(v, token)->target;
  }
  return tokens;
}

size_t RepeatIndex::slot_of(int32_t state, int32_t token) const {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
  const uint64_t mixed = (key ^ key >> 29) * 0x9e3779b97f4a7c15ull;
  return static_cast<size_t>(mixed >> 20) & (slots_.size() - 1);
}

RepeatIndex::Edge* RepeatIndex::find(int32_t state, int32_t token) {
  for (size_t i = slot_of(state, token);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i] == kNone) return nullptr;
    Edge& edge = edges_[static_cast<size_t>(slots_[i])];
    if (edge.state == state && edge.token == token) return &edge;
  }
}

void RepeatIndex::add_edge(int32_t state, int32_t token, int32_t target) {
  if (edges_.size() * 2 >= slots_.size()) rehash(2 * slots_.size());
  State& of = states_[static_cast<size_t>(state)];
  edges_.push_back({state, token, target, of.edges});
  of.edges = static_cast<int32_t>(edges_.size()) - 1;
  size_t i = slot_of(state, token);
  while (slots_[i] != kNone) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = of.edges;
}

void RepeatIndex::rehash(size_t slots) {
  slots_.assign(slots, kNone);
  for (size_t e = 0; e < edges_.size(); ++e) {
    size_t i = slot_of(edges_[e].state, edges_[e].token);
    while (slots_[i] != kNone) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = static_cast<int32_t>(e);
  }
}

}  // namespace tidemill::text
