// An index of a growing text of tokens: where its end occurred before, and what followed there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemill::text {

// A suffix automaton (Blumer et al. 1985), built token by token in linear time, whose states count the
// occurrences of their strings. Tokens below 0 separate texts: they are never proposed, and no two are
// equal.
class RepeatIndex {
 public:
  // Of a text longer than `most` tokens only the latest are indexed, at least half of them.
  explicit RepeatIndex(int64_t most);

  void extend(const int32_t* tokens, int64_t count);
  void separate();

  int64_t tokens() const { return static_cast<int64_t>(text_.size()); }
  int64_t bytes() const;
  // Tokens at the end of the text that occurred before, as a whole.
  int64_t match() const { return states_[static_cast<size_t>(states_[last()].link)].length; }
  // What followed the match most often (of equals the latest), then what followed that, and so on: up to
  // `count` tokens, none without a match.
  std::vector<int32_t> propose(int64_t count) const;

 private:
  struct State {
    int32_t length;          // of its longest string
    int32_t link;            // the state of the longest suffix with more occurrences
    int32_t count;           // occurrences
    int32_t frequent;        // the token that followed most often; kNone: none did
    int32_t edges;           // the first of its edges; kNone: none
  };
  struct Edge {
    int32_t state, token, target, next;
  };

  size_t last() const { return static_cast<size_t>(last_); }
  void clear();
  void append(int32_t token);
  int32_t add_state(int32_t length, int32_t count);
  int32_t split(int32_t from, int32_t token, int32_t target);
  void count_up(int32_t before, int32_t token);
  Edge* find(int32_t state, int32_t token);
  const Edge* find(int32_t state, int32_t token) const {
    return const_cast<RepeatIndex*>(this)->find(state, token);
  }
  void add_edge(int32_t state, int32_t token, int32_t target);
  size_t slot_of(int32_t state, int32_t token) const;
  void rehash(size_t slots);

  int64_t most_;
  std::vector<int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> slots_;  // edges by state and token; kNone: free
  int32_t last_ = 0;
  int32_t separators_ = 0;
};

}  // namespace tidemill::text
