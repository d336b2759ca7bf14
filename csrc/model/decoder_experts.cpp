// Mixtures of experts. Rows are grouped by expert so that an expert's weights are read once; a row's
// arithmetic is the same as if it were alone.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/decoder.h"

namespace tidemill {

namespace {
// Tokens per chunk: enough that each expert gets several, few enough to bound the size of the experts'
// outputs.
constexpr int64_t kMoeChunkTokens = 512;
}  // namespace

// Chooses experts for the tokens whose rows are packed in acts_.
void Decoder::choose_experts(const Experts& moe) {
  const auto assigned = static_cast<size_t>(tokens_ * moe.routing.top_k);
  chosen_.resize(assigned);
  shares_.resize(assigned);
  float* const scores = router_.ensure(tokens_ * moe.routing.experts);
  multiply({{&moe.router, scores, moe.routing.experts, 0, tokens_}});
  route_scratch_.resize(static_cast<size_t>(pool_.threads()));
  for_each_token(tokens_, [&](int64_t t, int thread) {
    const int64_t k = moe.routing.top_k;
    route(moe.routing, scores + t * moe.routing.experts,
          route_scratch_[static_cast<size_t>(thread)], chosen_.data() + t * k,
          shares_.data() + t * k);
  });
}

void Decoder::run_experts_chunked(const Experts& moe, float* out) {
  for (int64_t first = 0; first < tokens_; first += kMoeChunkTokens) {
    run_experts_chunk(moe, first, std::min(kMoeChunkTokens, tokens_ - first), out);
  }
}

void Decoder::run_moe(const Experts& moe, float* out) {
  choose_experts(moe);
  if (moe.shared_gate.weight != nullptr) {
    shared_gate_.ensure(tokens_);
    multiply({{&moe.shared_gate, shared_gate_.data(), 1, 0, tokens_}});
  }
  run_experts_chunked(moe, out);
  if (moe.shared.up.weight == nullptr) return;
  // acts_ still holds the rows that were copied to the experts.
  dense(moe.shared, tokens_, shared_out_.ensure(tokens_ * delta_stride_));
  for_each_token(tokens_, [&](int64_t t, int) {
    const float* shared = shared_out_.data() + t * delta_stride_;
    float* row = out + t * delta_stride_;
    if (moe.shared_gate.weight == nullptr) {
      kernels_.add(row, shared, model_.hidden);
    } else {
      const float open = 1.0f / (1.0f + std::exp(-shared_gate_.data()[t]));
      kernels_.add_scaled(row, shared, open, model_.hidden);
    }
  });
}

// For models whose router, experts and shared expert have separate input norms; `norm` is the shared
// expert's.
void Decoder::run_moe_own_norms(const Experts& moe, const Norm& norm, float* out) {
  add_norm_pack(norm, input_acts(moe.shared));
  dense(moe.shared, tokens_, shared_out_.ensure(tokens_ * delta_stride_));
  add_norm_pack(moe.router_norm, act_bit(moe.router));
  choose_experts(moe);
  unsigned acts = 0;
  for (const FeedForward& expert : moe.experts) acts |= input_acts(expert);
  float* const keep = moe.scale_inputs ? normed_.ensure(tokens_ * model_.hidden) : nullptr;
  add_norm_pack(moe.experts_norm, acts, keep);
  run_experts_chunked(moe, out);
  for_each_token(tokens_, [&](int64_t t, int) {
    float *const row = out + t * delta_stride_, *const shared = shared_out_.data() + t * delta_stride_;
    apply_norm(moe.experts_post, row, row);
    apply_norm(moe.shared_post, shared, shared);
    kernels_.add(row, shared, model_.hidden);
  });
}

void Decoder::run_experts_chunk(const Experts& moe, int64_t first, int64_t count, float* out) {
  const int64_t k = moe.routing.top_k;
  group_by_expert(moe, first, count);
  run_experts(moe, count * k);
  for_each_token(count, [&](int64_t t, int) {
    float* row = out + (first + t) * delta_stride_;
    std::fill_n(row, model_.hidden, 0.0f);
    for (int64_t n = 0; n < k; ++n) {  // in rank order
      const int64_t slot = slot_of_[static_cast<size_t>(t * k + n)];
      const float* made = slot_out_.data() + slot * delta_stride_;
      if (moe.scale_inputs) {
        kernels_.add(row, made, model_.hidden);
      } else {
        kernels_.add_scaled(row, made, shares_[static_cast<size_t>((first + t) * k + n)],
                            model_.hidden);
      }
    }
  });
}

// Assigns a slot to every (token, rank), grouped by expert and in token order, and copies the token's
// packed row into it.
void Decoder::group_by_expert(const Experts& moe, int64_t first, int64_t count) {
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
  unsigned acts = 0;
  for (const FeedForward& expert : moe.experts) {
    acts |= input_acts(expert) | act_bit(expert.down);
  }
  for (int act = 0; act < kActTypes; ++act) {
    if (acts >> act & 1u) {
      expert_acts_.ensure(act, slots);
      down_acts_.ensure(act, slots);
    }
  }
  if (moe.scale_inputs) {
    for_each_token(slots, [&](int64_t slot, int thread) {
      const auto s = static_cast<size_t>(slot);
      float* row = scratch_.data() + thread * scratch_width_;
      std::copy_n(normed_.data() + slot_token_[s] * model_.hidden, model_.hidden, row);
      kernels_.scale(row, slot_share_[s], model_.hidden);
      pack_row(acts, row, model_.hidden, slot, expert_acts_);
    });
    return;
  }
  for_each_token(slots, [&](int64_t slot, int) {
    for (int act = 0; act < kActTypes; ++act) {
      if ((acts >> act & 1u) == 0) continue;
      std::memcpy(expert_acts_.row(act, slot),
                  acts_.row(act, slot_token_[static_cast<size_t>(slot)]),
                  static_cast<size_t>(acts_.stride[act]));
    }
  });
}

void Decoder::run_experts(const Experts& moe, int64_t slots) {
  mlp_.ensure(slots * mlp_width_);
  slot_out_.ensure(slots * delta_stride_);
  std::vector<const FeedForward*> expert_of(static_cast<size_t>(slots));
  products_.clear();
  const auto each = [&](auto&& body) {
    for (size_t e = 0; e < moe.experts.size(); ++e) {
      const int64_t begin = expert_slot_[e], rows = expert_slot_[e + 1] - begin;
      if (rows > 0) body(moe.experts[e], begin, rows);
    }
  };
  each([&](const FeedForward& expert, int64_t begin, int64_t rows) {
    float *const gate = mlp_.data() + begin * mlp_width_, *const up = gate + mlp_width_ / 2;
    if (expert.gated()) products_.push_back({&expert.gate, gate, mlp_width_, begin, rows});
    products_.push_back({&expert.up, up, mlp_width_, begin, rows});
    std::fill_n(expert_of.begin() + begin, rows, &expert);
  });
  multiply(products_.data(), products_.size(), expert_acts_);
  for_each_token(slots, [&](int64_t slot, int thread) {
    activate_row(*expert_of[static_cast<size_t>(slot)], slot, thread, down_acts_);
  });
  products_.clear();
  each([&](const FeedForward& expert, int64_t begin, int64_t rows) {
    products_.push_back({&expert.down, slot_out_.data() + begin * delta_stride_, delta_stride_,
                         begin, rows});
  });
  multiply(products_.data(), products_.size(), down_acts_);
}

}  // namespace tidemill
