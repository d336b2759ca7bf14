#include "text/pattern.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace tidemill::text {
namespace {

constexpr uint32_t kMostRepeats = 64;        // of a counted group, which is written out
constexpr int kDeepest = 32;                 // groups in groups
constexpr size_t kMostStepsOfProgram = 4096;

constexpr uint32_t bit(Category category) { return uint32_t{1} << static_cast<int>(category); }

// A category's mask by its name of one or two letters; 0 for any other name.
uint32_t categories_named(std::string_view name) {
  static constexpr std::string_view kNames =
      "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
  uint32_t mask = 0;
  for (int i = 0; i < kCategories; ++i) {
    const std::string_view known = kNames.substr(2 * i, 2);
    if (name == known || (name.size() == 1 && name[0] == known[0])) mask |= uint32_t{1} << i;
  }
  return mask;
}

// What an expression says, before it is a program.
struct Node {
  enum class Kind { Set, Sequence, Choice, Repeat, Ahead } kind;
  CharacterSet set;
  std::vector<std::unique_ptr<Node>> parts;
  uint32_t least = 0, most = 0;
  bool possessive = false;
  bool negative = false;  // of Ahead
};
using NodePtr = std::unique_ptr<Node>;

NodePtr make(Node::Kind kind) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  return node;
}

// The fewest characters a node can match.
uint64_t shortest(const Node& node) {
  switch (node.kind) {
    case Node::Kind::Set: return 1;
    case Node::Kind::Ahead: return 0;
    case Node::Kind::Repeat: return node.least * shortest(*node.parts[0]);
    case Node::Kind::Sequence: {
      uint64_t sum = 0;
      for (const auto& part : node.parts) sum += shortest(*part);
      return sum;
    }
    case Node::Kind::Choice: {
      uint64_t least = UINT64_MAX;
      for (const auto& part : node.parts) least = std::min(least, shortest(*part));
      return least;
    }
  }
  return 0;
}

// Thrown where an expression has what is not compiled; it never leaves this file.
struct Beyond {};

}  // namespace

void CharacterSet::finish() {
  for (uint32_t code = 0; code < ascii_.size(); ++code) ascii_[code] = contains_any(code);
}

bool CharacterSet::contains_any(uint32_t code) const {
  bool in = (categories_ & bit(category(code))) != 0;
  if (!in && (spaces_ || others_)) in = is_space(code) ? spaces_ : others_;
  for (size_t i = 0; !in && i < ranges_.size(); ++i) {
    in = ranges_[i].first <= code && code <= ranges_[i].second;
  }
  return in != inverted_;
}

class PatternCompiler {
 public:
  explicit PatternCompiler(std::string_view source) : source_(source) {}

  Pattern compile() {
    NodePtr all = choice(0);
    if (at_ != source_.size() || shortest(*all) == 0) throw Beyond{};
    emit(*all);
    pattern_.steps_.push_back({Pattern::Op::End});
    return std::move(pattern_);
  }

 private:
  bool more() const { return at_ < source_.size(); }
  bool take(std::string_view text) {
    if (source_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  uint32_t take_character() {
    if (!more()) throw Beyond{};
    const Character found = character_at(source_, at_);
    at_ += found.size;
    return found.code;
  }

  NodePtr choice(int depth) {
    if (depth > kDeepest) throw Beyond{};
    NodePtr node = make(Node::Kind::Choice);
    do {
      node->parts.push_back(sequence(depth));
    } while (take("|"));
    return node->parts.size() == 1 ? std::move(node->parts[0]) : std::move(node);
  }

  NodePtr sequence(int depth) {
    NodePtr node = make(Node::Kind::Sequence);
    while (more() && source_[at_] != '|' && source_[at_] != ')') {
      node->parts.push_back(repeated(atom(depth)));
    }
    return node;
  }

  NodePtr atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return set_node(bracket());
    if (take("\\")) {
      CharacterSet set;
      escape(set);
      return set_node(std::move(set));
    }
    if (std::string_view("^$.*+?{}]").find(source_[at_]) != std::string_view::npos) throw Beyond{};
    CharacterSet set;
    add_letter(set, take_character());
    // "ss" and "st" in any case are also one letter of another script's.
    const bool doubled = any_case_ && at_ >= 2 && (source_[at_ - 2] | 0x20) == 's' &&
                         ((source_[at_ - 1] | 0x20) == 's' || (source_[at_ - 1] | 0x20) == 't');
    if (doubled) throw Beyond{};
    return set_node(std::move(set));
  }

  NodePtr group(int depth) {
    NodePtr node;
    if (take("?:")) {
      node = choice(depth + 1);
    } else if (take("?i:")) {
      const bool outer = std::exchange(any_case_, true);
      node = choice(depth + 1);
      any_case_ = outer;
    } else if (take("?=") || take("?!")) {
      const bool negative = source_[at_ - 1] == '!';
      node = make(Node::Kind::Ahead);
      node->negative = negative;
      node->parts.push_back(choice(depth + 1));
    } else if (more() && source_[at_] != '?') {
      node = choice(depth + 1);  // what it captures is not asked for
    }
    if (!node || !take(")")) throw Beyond{};
    return node;
  }

  NodePtr repeated(NodePtr node) {
    uint32_t least = 1, most = 1;
    bool counted = false;
    if (take("?")) {
      least = 0;
    } else if (take("*")) {
      least = 0, most = Pattern::kUnbounded;
    } else if (take("+")) {
      most = Pattern::kUnbounded;
    } else if (take("{")) {
      counted = true;
      least = number();
      most = !take(",") ? least : more() && source_[at_] == '}' ? Pattern::kUnbounded : number();
      if (!take("}") || most < least || most == 0) throw Beyond{};
    } else {
      return node;
    }
    NodePtr repeat = make(Node::Kind::Repeat);
    if (!counted && take("+")) repeat->possessive = true;
    // Lazy repetition, repeated repetition, and repeating what can be nothing.
    if (more() && std::string_view("?*+{").find(source_[at_]) != std::string_view::npos) {
      throw Beyond{};
    }
    if (shortest(*node) == 0 || (repeat->possessive && node->kind != Node::Kind::Set)) {
      throw Beyond{};
    }
    repeat->least = least, repeat->most = most;
    repeat->parts.push_back(std::move(node));
    return repeat;
  }

  uint32_t number() {
    uint32_t value = 0;
    const size_t begin = at_;
    while (more() && source_[at_] >= '0' && source_[at_] <= '9') {
      value = value * 10 + static_cast<uint32_t>(source_[at_++] - '0');
      if (value > kMostRepeats) throw Beyond{};
    }
    if (at_ == begin) throw Beyond{};
    return value;
  }

  static NodePtr set_node(CharacterSet set) {
    set.finish();
    NodePtr node = make(Node::Kind::Set);
    node->set = std::move(set);
    return node;
  }

  // Case is folded for the letters of English contractions alone: others have relatives that are
  // more than one character long.
  void add_letter(CharacterSet& set, uint32_t code) const {
    set.add_range(code, code);
    if (!any_case_) return;
    const bool letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
    if (!letter) {
      if (code >= 0x80) throw Beyond{};
      return;
    }
    const uint32_t small = code | 0x20;
    if (std::string_view("delmrstv").find(static_cast<char>(small)) == std::string_view::npos) {
      throw Beyond{};
    }
    set.add_range(small, small);
    set.add_range(small - 0x20, small - 0x20);
    if (small == 's') set.add_range(0x17F, 0x17F);  // the long s
  }

  // What stands behind a backslash. Returns the character where it is a single one.
  std::optional<uint32_t> escape(CharacterSet& set) {
    const uint32_t code = take_character();
    switch (code) {
      case 's': set.add_space(false); return std::nullopt;
      case 'S': set.add_space(true); return std::nullopt;
      case 'd': set.add_categories(bit(Category::Nd)); return std::nullopt;
      case 'D': set.add_categories(~bit(Category::Nd)); return std::nullopt;
      case 'p': case 'P': set.add_categories(property(code == 'P')); return std::nullopt;
      case 'n': return single(set, '\n');
      case 'r': return single(set, '\r');
      case 't': return single(set, '\t');
      case 'x': return single(set, hexadecimal());
      default: break;
    }
    const bool sign = code > ' ' && code < 0x7F && category(code) >= Category::Pc;
    if (!sign) throw Beyond{};  // among them \b, \w, \A, \z, and numbers of groups
    return single(set, code);
  }

  std::optional<uint32_t> single(CharacterSet& set, uint32_t code) const {
    add_letter(set, code);
    return code;
  }

  uint32_t property(bool inverted) {
    if (!take("{")) throw Beyond{};
    const size_t end = source_.find('}', at_);
    if (end == std::string_view::npos) throw Beyond{};
    const uint32_t mask = categories_named(source_.substr(at_, end - at_));
    at_ = end + 1;
    if (mask == 0 || any_case_) throw Beyond{};
    return inverted ? ~mask : mask;
  }

  uint32_t hexadecimal() {
    if (!take("{")) throw Beyond{};
    uint32_t code = 0;
    const size_t begin = at_;
    for (; more() && source_[at_] != '}'; ++at_) {
      const char c = source_[at_];
      const bool digit = c >= '0' && c <= '9';
      const char small = static_cast<char>(c | 0x20);
      if (!digit && (small < 'a' || small > 'f')) throw Beyond{};
      code = code * 16 + static_cast<uint32_t>(digit ? c - '0' : small - 'a' + 10);
      if (code > kLastCode) throw Beyond{};
    }
    if (at_ == begin || !take("}")) throw Beyond{};
    return code;
  }

  // A class, from behind its opening bracket on.
  CharacterSet bracket() {
    CharacterSet set;
    const bool inverted = take("^");
    if (take("]")) throw Beyond{};
    while (!take("]")) {
      if (take("&&") || take("[")) throw Beyond{};
      if (source_.substr(at_, 1) == "-" && source_.substr(at_ + 1, 1) != "]") throw Beyond{};
      std::optional<uint32_t> first = member(set);
      const bool range = source_.substr(at_, 1) == "-" && source_.substr(at_ + 1, 1) != "]";
      if (!range) continue;
      at_ += 1;
      CharacterSet ignored;
      if (source_.substr(at_, 1) == "[") throw Beyond{};
      const std::optional<uint32_t> last = member(ignored);
      if (!first || !last || *first > *last || any_case_) throw Beyond{};
      set.add_range(*first, *last);
    }
    if (inverted && any_case_) throw Beyond{};
    if (inverted) set.invert();
    return set;
  }

  std::optional<uint32_t> member(CharacterSet& set) {
    if (take("\\")) return escape(set);
    return single(set, take_character());
  }

  uint32_t add(Pattern::Step step) {
    if (pattern_.steps_.size() >= kMostStepsOfProgram) throw Beyond{};
    pattern_.steps_.push_back(step);
    return static_cast<uint32_t>(pattern_.steps_.size() - 1);
  }
  uint32_t here() const { return static_cast<uint32_t>(pattern_.steps_.size()); }

  uint32_t keep(const CharacterSet& set) {
    pattern_.sets_.push_back(set);
    return static_cast<uint32_t>(pattern_.sets_.size() - 1);
  }

  void emit(const Node& node) {
    switch (node.kind) {
      case Node::Kind::Set: add({Pattern::Op::One, false, keep(node.set)}); break;
      case Node::Kind::Sequence:
        for (const auto& part : node.parts) emit(*part);
        break;
      case Node::Kind::Choice: emit_choice(node); break;
      case Node::Kind::Repeat: emit_repeat(node); break;
      case Node::Kind::Ahead: {
        const uint32_t start = add({Pattern::Op::Ahead, false, 0, node.negative});
        emit(*node.parts[0]);
        add({Pattern::Op::End});
        pattern_.steps_[start].next = here();
        break;
      }
    }
  }

  void emit_choice(const Node& node) {
    std::vector<uint32_t> ends;
    for (size_t i = 0; i < node.parts.size(); ++i) {
      const bool last = i + 1 == node.parts.size();
      const uint32_t fork = last ? 0 : add({Pattern::Op::Fork});
      if (!last) pattern_.steps_[fork].next = here();
      emit(*node.parts[i]);
      if (last) break;
      ends.push_back(add({Pattern::Op::Jump}));
      pattern_.steps_[fork].other = here();
    }
    for (const uint32_t end : ends) pattern_.steps_[end].next = here();
  }

  void emit_repeat(const Node& node) {
    const Node& part = *node.parts[0];
    if (part.kind == Node::Kind::Set) {
      add({Pattern::Op::Run, node.possessive, keep(part.set), node.least, node.most});
      return;
    }
    for (uint32_t i = 0; i < node.least; ++i) emit(part);
    if (node.most == Pattern::kUnbounded) {
      const uint32_t fork = add({Pattern::Op::Fork});
      pattern_.steps_[fork].next = here();
      emit(part);
      const uint32_t back = add({Pattern::Op::Jump});
      pattern_.steps_[back].next = fork;
      pattern_.steps_[fork].other = here();
      return;
    }
    std::vector<uint32_t> forks;
    for (uint32_t i = node.least; i < node.most; ++i) {
      forks.push_back(add({Pattern::Op::Fork}));
      pattern_.steps_[forks.back()].next = here();
      emit(part);
    }
    for (const uint32_t fork : forks) pattern_.steps_[fork].other = here();
  }

  std::string_view source_;
  size_t at_ = 0;
  bool any_case_ = false;
  Pattern pattern_;
};

std::optional<Pattern> Pattern::compile(std::string_view expression) {
  if (!is_utf8(expression)) return std::nullopt;
  try {
    return PatternCompiler(expression).compile();
  } catch (const Beyond&) {
    return std::nullopt;
  }
}

size_t Pattern::run(std::string_view text, size_t at, uint32_t step, Scratch& scratch) const {
  std::vector<Retreat>& retreats = scratch.retreats;
  const size_t ours = retreats.size();  // those before belong to a match around this one
  const auto spend = [&scratch](uint64_t steps) {
    if (scratch.budget < steps) {
      throw std::runtime_error("its word rule finds too many ways to match");
    }
    scratch.budget -= steps;
  };
  for (;;) {
    spend(1);
    const Step& now = steps_[step];
    bool failed = false;
    switch (now.op) {
      case Op::One: {
        if (at >= text.size()) {
          failed = true;
          break;
        }
        const Character found = character_at(text, at);
        failed = !sets_[now.set].contains(found.code);
        at += found.size;
        ++step;
        break;
      }
      case Op::Run: {
        const CharacterSet& set = sets_[now.set];
        size_t low = at;
        uint32_t count = 0;
        while (count < now.most && at < text.size()) {
          const Character found = character_at(text, at);
          if (!set.contains(found.code)) break;
          at += found.size;
          if (++count == now.least) low = at;
        }
        spend(count);
        failed = count < now.least;
        ++step;
        if (!failed && !now.possessive && at > low) retreats.push_back({step, at, low});
        break;
      }
      case Op::Fork:
        retreats.push_back({now.other, at, at});
        step = now.next;
        break;
      case Op::Jump: step = now.next; break;
      case Op::Ahead: {
        const bool found = run(text, at, step + 1, scratch) != std::string_view::npos;
        failed = found == (now.least == 1);
        step = now.next;
        break;
      }
      case Op::End: retreats.resize(ours); return at;
    }
    if (!failed) continue;
    if (retreats.size() == ours) return std::string_view::npos;
    Retreat& last = retreats.back();
    step = last.step;
    if (last.at > last.low) last.at = before(text, last.at);
    at = last.at;
    if (last.at == last.low) retreats.pop_back();
  }
}

}  // namespace tidemill::text
