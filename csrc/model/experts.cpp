#include "model/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tidemill {

namespace {

// Tokens per chunk: enough that each expert gets several, few enough to bound the size of the experts'
// outputs.
constexpr int64_t kChunkTokens = 512;

// Sets of activation types that the experts' first products and their `down` read.
unsigned expert_input_acts(const Experts& moe) {
  unsigned acts = 0;
  for (const FeedForward& expert : moe.experts) acts |= input_acts(expert);
  return acts;
}

unsigned expert_down_acts(const Experts& moe) {
  unsigned acts = 0;
  for (const FeedForward& expert : moe.experts) acts |= act_bit(expert.down);
  return acts;
}

}  // namespace

void ExpertsBlock::add(const Experts& moe) {
  context_.reads(moe.router);
  context_.reads(moe.shared_gate);
  for (const FeedForward& expert : moe.experts) feed_forward_.add(expert);
  if (moe.shared.up) feed_forward_.add(moe.shared);
}

void ExpertsBlock::run(const Experts& moe, const Norm& norm, const LinearList& following, float* out) {
  moe.apart() ? run_own_norms(moe, norm, following, out) : run_common_norm(moe, norm, following, out);
}

void ExpertsBlock::run_common_norm(const Experts& moe, const Norm& norm, const LinearList& following,
                                   float* out) {
  const KernelTable& kernels = context_.kernels;
  const int64_t tokens = context_.tokens, hidden = context_.model.hidden;
  unsigned acts = act_bit(moe.router) | expert_input_acts(moe);
  if (moe.shared.up) acts |= input_acts(moe.shared);
  if (moe.shared_gate) acts |= act_bit(moe.shared_gate);
  stream_.norm_and_pack(norm, acts, moe.scale_inputs ? normed_.ensure(tokens * hidden) : nullptr);
  choose(moe);
  if (moe.shared_gate) {
    float* const gate = shared_gate_.ensure(tokens);
    context_.products.multiply({{&moe.shared_gate, gate, 1, 0, tokens}}, context_.acts);
  }
  run_chosen(moe, out);
  if (!moe.shared.up) return;
  // The context's acts still hold the rows that were copied to the experts.
  float* const shared = shared_output();
  feed_forward_.run(moe.shared, following, shared);
  context_.for_each_token(tokens, [&](int64_t t, int) {
    float* const row = out + t * stream_.stride();
    const float* const from = shared + t * stream_.stride();
    if (!moe.shared_gate) {
      kernels.add(row, from, hidden);
    } else {
      const float open = 1.0f / (1.0f + std::exp(-shared_gate_.data()[t]));
      kernels.add_scaled(row, from, open, hidden);
    }
  });
}

void ExpertsBlock::run_own_norms(const Experts& moe, const Norm& norm, const LinearList& following,
                                 float* out) {
  const int64_t tokens = context_.tokens, hidden = context_.model.hidden;
  float* const shared = shared_output();
  stream_.norm_and_pack(norm, input_acts(moe.shared));
  feed_forward_.run(moe.shared, following, shared);
  stream_.norm_and_pack(moe.router_norm, act_bit(moe.router));
  choose(moe);
  float* const keep = moe.scale_inputs ? normed_.ensure(tokens * hidden) : nullptr;
  stream_.norm_and_pack(moe.experts_norm, expert_input_acts(moe), keep);
  run_chosen(moe, out);
  context_.for_each_token(tokens, [&](int64_t t, int) {
    float *const row = out + t * stream_.stride(), *const from = shared + t * stream_.stride();
    context_.apply_norm(context_.norm_of(moe.experts_post, t), row, row);
    context_.apply_norm(context_.norm_of(moe.shared_post, t), from, from);
    context_.kernels.add(row, from, hidden);
  });
}

void ExpertsBlock::choose(const Experts& moe) {
  const int64_t tokens = context_.tokens, k = moe.routing.top_k;
  chosen_.resize(static_cast<size_t>(tokens * k));
  shares_.resize(static_cast<size_t>(tokens * k));
  float* const scores = scores_.ensure(tokens * moe.routing.experts);
  context_.products.multiply({{&moe.router, scores, moe.routing.experts, 0, tokens}}, context_.acts);
  route_scratch_.resize(static_cast<size_t>(context_.pool.threads()));
  context_.for_each_token(tokens, [&](int64_t t, int thread) {
    route(moe.routing, scores + t * moe.routing.experts,
          route_scratch_[static_cast<size_t>(thread)], chosen_.data() + t * k,
          shares_.data() + t * k);
  });
}

void ExpertsBlock::run_chosen(const Experts& moe, float* out) {
  for (int64_t first = 0; first < context_.tokens; first += kChunkTokens) {
    run_chunk(moe, first, std::min(kChunkTokens, context_.tokens - first), out);
  }
}

void ExpertsBlock::run_chunk(const Experts& moe, int64_t first, int64_t count, float* out) {
  const int64_t k = moe.routing.top_k, hidden = context_.model.hidden;
  assign_slots(moe, first, count);
  fill_slots(moe);
  run_slots(moe);
  context_.for_each_token(count, [&](int64_t t, int) {
    float* row = out + (first + t) * stream_.stride();
    std::fill_n(row, hidden, 0.0f);
    for (int64_t n = 0; n < k; ++n) {  // in rank order
      const int64_t slot = slot_of_[static_cast<size_t>(t * k + n)];
      const float* made = slot_out_.data() + slot * stream_.stride();
      if (moe.scale_inputs) {
        context_.kernels.add(row, made, hidden);
      } else {
        context_.kernels.add_scaled(row, made, shares_[static_cast<size_t>((first + t) * k + n)],
                                    hidden);
      }
    }
  });
}

void ExpertsBlock::assign_slots(const Experts& moe, int64_t first, int64_t count) {
  const int64_t k = moe.routing.top_k, slots = count * k;
  const int32_t* chosen = chosen_.data() + first * k;
  expert_slot_.assign(static_cast<size_t>(moe.routing.experts) + 1, 0);
  for (int64_t i = 0; i < slots; ++i) ++expert_slot_[static_cast<size_t>(chosen[i]) + 1];
  for (size_t e = 1; e < expert_slot_.size(); ++e) expert_slot_[e] += expert_slot_[e - 1];
  std::vector<int64_t> next(expert_slot_.begin(), expert_slot_.end() - 1);
  slot_of_.resize(static_cast<size_t>(slots));
  slot_token_.resize(static_cast<size_t>(slots));
  slot_share_.resize(static_cast<size_t>(slots));
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t slot = next[static_cast<size_t>(chosen[i])]++;
    slot_of_[static_cast<size_t>(i)] = slot;
    slot_token_[static_cast<size_t>(slot)] = first + i / k;
    slot_share_[static_cast<size_t>(slot)] = shares_[static_cast<size_t>(first * k + i)];
  }
}

void ExpertsBlock::fill_slots(const Experts& moe) {
  const auto slots = static_cast<int64_t>(slot_token_.size());
  const int64_t hidden = context_.model.hidden;
  const unsigned types = expert_input_acts(moe);
  slot_acts_.adapters = context_.adapters_of(slot_adapters_, slots, [&](int64_t slot) {
    return slot_token_[static_cast<size_t>(slot)];
  });
  slot_acts_.ensure(types, slots);
  if (moe.scale_inputs) {
    context_.for_each_token(slots, [&](int64_t slot, int thread) {
      const auto s = static_cast<size_t>(slot);
      float* row = context_.scratch(thread);
      std::copy_n(normed_.data() + slot_token_[s] * hidden, hidden, row);
      context_.kernels.scale(row, slot_share_[s], hidden);
      context_.pack_row(types, row, hidden, slot, slot_acts_);
    });
    return;
  }
  const Acts& acts = context_.acts;
  context_.for_each_token(slots, [&](int64_t slot, int) {
    for_each_act(types | slot_acts_.adapter_types_of(slot), [&](int act) {
      std::memcpy(slot_acts_.row(act, slot), acts.row(act, slot_token_[static_cast<size_t>(slot)]),
                  static_cast<size_t>(acts.stride[act]));
    });
  });
}

void ExpertsBlock::run_slots(const Experts& moe) {
  const auto slots = static_cast<int64_t>(slot_token_.size());
  feed_forward_.ensure(expert_down_acts(moe), slots, slot_acts_.adapters);
  slot_out_.ensure(slots * stream_.stride());
  std::vector<const FeedForward*> expert_of(static_cast<size_t>(slots));
  const auto each = [&](auto&& body) {
    for (size_t e = 0; e < moe.experts.size(); ++e) {
      const int64_t begin = expert_slot_[e], rows = expert_slot_[e + 1] - begin;
      if (rows > 0) body(moe.experts[e], begin, rows);
    }
  };
  products_.clear();
  each([&](const FeedForward& expert, int64_t begin, int64_t rows) {
    if (expert.gated()) products_.push_back(feed_forward_.gate_product(expert, begin, rows));
    products_.push_back(feed_forward_.up_product(expert, begin, rows));
    std::fill_n(expert_of.begin() + begin, rows, &expert);
  });
  context_.products.multiply(products_.data(), products_.size(), slot_acts_);
  context_.for_each_token(slots, [&](int64_t slot, int thread) {
    feed_forward_.activate_row(*expert_of[static_cast<size_t>(slot)], slot, thread);
  });
  feed_forward_.gather_rows(expert_down_acts(moe), slots, [&](int64_t slot) -> const FeedForward& {
    return *expert_of[static_cast<size_t>(slot)];
  });
  const int64_t hidden = context_.model.hidden, first = context_.model.shard.first(hidden);
  products_.clear();
  each([&](const FeedForward& expert, int64_t begin, int64_t rows) {
    products_.push_back({&expert.down, slot_out_.data() + begin * stream_.stride() + first,
                         stream_.stride(), begin, rows});
  });
  context_.products.multiply(products_.data(), products_.size(), feed_forward_.down_acts());
  context_.gather(slot_out_.data(), stream_.stride(), slots, hidden);
}

}  // namespace tidemill
