#include "step/run.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>

#include "runtime/error.h"
#include "sample/candidates.h"
#include "sample/logprobs.h"

namespace tidemill {

namespace {

// Rows of logits computed at once for positions that are not sampled.
constexpr int64_t kLogitChunk = 64;
constexpr int32_t kNothing = INT32_MIN;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool wants_target(const StepInput& step, size_t row, int64_t token) {
  return step.logits[row] == kLogitsAll && step.target_logprobs[row] >= 0 &&
         step.target_ids[static_cast<size_t>(token)] >= 0;
}

}  // namespace

StepRunner::StepRunner(const KernelTable& kernels, ThreadPool& pool, DecoderModel& model,
                       Latch& packed, std::function<bool()> cancelled, Group* group, Stage* stage)
    : kernels_(kernels),
      pool_(pool),
      model_(model),
      group_(group),
      stage_(stage),
      decoder_(kernels, pool, model, packed, std::move(cancelled), group, stage) {
  for (int t = 0; t < pool.threads(); ++t) {
    samplers_.push_back(std::make_unique<Sampler>(model.vocab));
  }
}

StepRunner::Begun StepRunner::begin(const StepInput& step, KvCache& cache) {
  Begun begun{step.token_ids, std::vector<int32_t>(static_cast<size_t>(step.rows()), 0),
              std::chrono::steady_clock::now(), decoder_.packing_wait_seconds()};
  if (leads() && model_.embeds) resolve(step, begun);
  if (group_ != nullptr) group_->broadcast(pool_, begun.token_ids);
  for (size_t g = 0; g < step.copies.size(); ++g) {
    cache.copy(static_cast<int64_t>(g), step.copies[g].values.data(), step.copies[g].rows);
  }
  cache.states().begin(step);
  decoder_.forward(step, begun.token_ids, cache);
  cache.states().commit(step);
  return begun;
}

StepOutput StepRunner::finish(const Begun& begun, const StepInput& step, KvCache& cache, MaskBoard& masks) {
  StepOutput out;
  previous_.clear();
  if (!model_.embeds) return out;  // stage 0 has the results
  if (stage_ != nullptr) decoder_.receive_results(step, cache);
  compute_hidden(step, out);
  compute_others(step, out);
  plan_sampling(begun, step);
  std::vector<int64_t> tokens;
  for (const Pending& p : pending_) {
    const int64_t first = step.first_sampled(static_cast<size_t>(p.row));
    for (int64_t j = 0; j < p.positions; ++j) tokens.push_back(first + j);
  }
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > 0) decoder_.logits(tokens.data(), count, sample_logits_.ensure(count * model_.vocab));
  const double computing = seconds_since(begun.start);
  if (!leads()) return out;
  sample_all(step, masks, out);
  out.seconds[3] = seconds_since(begun.start);
  out.seconds[2] = out.seconds[3] - computing;
  // Waiting for packing is not part of a step's cost.
  out.seconds[1] = computing - (decoder_.packing_wait_seconds() - begun.packing_wait_seconds);

  previous_.assign(static_cast<size_t>(step.rows()), kNothing);
  for (const Pending& p : pending_) {
    if (p.positions > 1) continue;  // no step is submitted that takes its last token
    previous_[static_cast<size_t>(p.row)] = out.sampled[static_cast<size_t>(p.first)];
  }
  return out;
}

// Replaces FUTURE inputs with tokens sampled in the meantime. A row whose predecessor got no token
// inherits its failure code; it is computed with token 0, and the result is discarded.
void StepRunner::resolve(const StepInput& step, Begun& begun) const {
  for (size_t r = 0; r < begun.inherited.size(); ++r) {
    for (int32_t t = step.row_start[r]; t < step.row_start[r + 1]; ++t) {
      int32_t& token = begun.token_ids[static_cast<size_t>(t)];
      if (token >= 0) continue;
      const auto source = static_cast<size_t>(-1 - static_cast<int64_t>(token));
      if (source >= previous_.size() || previous_[source] == kNothing) {
        throw internal_error("token_ids: the step before sampled no token for row " +
                             std::to_string(source), "token_ids");
      }
      if (previous_[source] < 0) begun.inherited[r] = previous_[source];
      token = std::max(0, previous_[source]);
    }
  }
}

void StepRunner::plan_sampling(const Begun& begun, const StepInput& step) {
  pending_.clear();
  int64_t first = 0;
  for (size_t r = 0; r < static_cast<size_t>(step.rows()); ++r) {
    if (!step.sample[r]) continue;
    const auto last = static_cast<size_t>(step.row_start[r + 1]) - 1;
    const bool future = step.token_ids[last] < 0;
    pending_.push_back({static_cast<int64_t>(r), first, step.positions(r),
                        future ? begun.token_ids[last] : -1, begun.inherited[r]});
    first += step.positions(r);
  }
}

// Final hidden states of the rows that request them.
void StepRunner::compute_hidden(const StepInput& step, StepOutput& out) {
  const std::vector<int64_t> tokens = step.hidden_tokens();
  if (tokens.empty()) return;
  out.hidden_rows = static_cast<int64_t>(tokens.size());
  out.hidden.resize(tokens.size() * static_cast<size_t>(model_.hidden));
  decoder_.hidden(tokens.data(), out.hidden_rows, out.hidden.data());
  out.hidden_layers = static_cast<int64_t>(step.hidden_layers.size());
  out.layer_hidden = decoder_.take_layer_hidden();
}

// Logprobs of prompt targets and logits to return, computed in chunks.
void StepRunner::compute_others(const StepInput& step, StepOutput& out) {
  struct Wanted {
    int64_t token;
    int32_t target, alternatives;
    int64_t target_index, logit_index;
  };
  std::vector<Wanted> wanted;
  int64_t targets = 0, width = 0;
  for (size_t r = 0; r < static_cast<size_t>(step.rows()); ++r) {
    for (int64_t t = step.row_start[r]; t < step.row_start[r + 1]; ++t) {
      const bool has_logits = step.logits[r] == kLogitsAll ||
                              (step.logits[r] == kLogitsLast && t >= step.first_sampled(r));
      const bool target = wants_target(step, r, t), returned = step.return_logits && has_logits;
      if (!target && !returned) continue;
      wanted.push_back({t, step.target_ids[static_cast<size_t>(t)], step.target_logprobs[r],
                        target ? targets++ : -1, returned ? out.logit_rows++ : -1});
      if (target) width = std::max<int64_t>(width, step.target_logprobs[r]);
    }
  }
  if (targets > 0) start_logprobs(out.targets, targets, width);
  out.logits.resize(static_cast<size_t>(out.logit_rows * model_.vocab));
  const auto count = static_cast<int64_t>(wanted.size());
  if (count == 0) return;
  const ProfiledPart part(pool_.profile(), Part::Sampling);
  float* const logits = chunk_logits_.ensure(std::min(count, kLogitChunk) * model_.vocab);
  std::vector<int64_t> tokens;
  for (int64_t begin = 0; begin < count; begin += kLogitChunk) {
    const int64_t rows = std::min(kLogitChunk, count - begin);
    tokens.clear();
    for (int64_t i = 0; i < rows; ++i) {
      tokens.push_back(wanted[static_cast<size_t>(begin + i)].token);
    }
    decoder_.logits(tokens.data(), rows, logits);
    if (!leads()) continue;
    pool_.run(rows, 1, [&](int64_t i, int64_t, int) {
      const Wanted& w = wanted[static_cast<size_t>(begin + i)];
      const float* row = logits + i * model_.vocab;
      if (w.target_index >= 0) {
        fill_logprobs(kernels_, row, model_.vocab, w.target, w.alternatives, out.targets,
                      w.target_index);
      }
      if (w.logit_index >= 0) {
        std::memcpy(out.logits.data() + w.logit_index * model_.vocab, row,
                    static_cast<size_t>(model_.vocab) * sizeof(float));
      }
    });
  }
}

// Samples rows as they become ready: first those without a mask, then each row when its next mask arrives.
void StepRunner::sample_all(const StepInput& step, MaskBoard& masks, StepOutput& out) {
  const ProfiledPart part(pool_.profile(), Part::Sampling);
  const auto count = static_cast<size_t>(step.sampling.rows());
  out.sampled.assign(count, kNotReached);
  const auto& wanted = step.sampling.num_logprobs;
  const int32_t width = wanted.empty() ? -1 : *std::max_element(wanted.begin(), wanted.end());
  if (width >= 0) start_logprobs(out.logprobs, static_cast<int64_t>(count), width);
  if (const auto& beams = step.sampling.candidates; !beams.empty()) {
    start_candidates(out.candidates, static_cast<int64_t>(count),
                     *std::max_element(beams.begin(), beams.end()));
  }
  size_t left = pending_.size();
  for (int64_t seen = 0; left > 0; seen = await_mask(masks, seen)) {
    ready_.clear();
    for (size_t i = 0; i < pending_.size(); ++i) {
      const Pending& p = pending_[i];
      if (p.next == p.positions) continue;
      if (!masks.awaits(p.row) || masks.get(p.row, p.next) != nullptr) ready_.push_back(i);
    }
    sample_ready(step, masks, out);
    for (const size_t i : ready_) left -= pending_[i].next == pending_[i].positions;
    if (left == 0) break;
  }
}

int64_t StepRunner::await_mask(MaskBoard& masks, int64_t seen) const {
  const ProfiledPart part(pool_.profile(), Part::AwaitMasks);
  return masks.wait_for_more(seen);
}

void StepRunner::sample_ready(const StepInput& step, MaskBoard& masks, StepOutput& out) {
  if (ready_.empty()) return;
  copies_.ensure(pool_.threads() * model_.vocab);
  if (Profile* const profile = pool_.profile(); profile != nullptr) profile->next({Kernel::Sampling});
  pool_.run(static_cast<int64_t>(ready_.size()), 1, [&](int64_t i, int64_t, int thread) {
    sample_row(step, masks, out, pending_[ready_[static_cast<size_t>(i)]], thread);
  });
}

// Samples the row's positions until a draft is rejected or a mask is missing.
void StepRunner::sample_row(const StepInput& step, MaskBoard& masks, StepOutput& out, Pending& p,
                            int thread) {
  const auto end = static_cast<size_t>(step.row_start[static_cast<size_t>(p.row) + 1]);
  while (p.next < p.positions) {
    const uint8_t* const mask = masks.awaits(p.row) ? masks.get(p.row, p.next) : nullptr;
    if (mask == nullptr && masks.awaits(p.row)) return;
    const int32_t token = sample_position(step, out, p, mask, thread);
    out.sampled[static_cast<size_t>(p.first + p.next)] = token;
    ++p.next;
    if (p.next == p.positions) return;
    const size_t draft = end - static_cast<size_t>(p.positions - p.next);
    if (token != step.token_ids[draft]) p.next = p.positions;
  }
}

int32_t StepRunner::sample_position(const StepInput& step, StepOutput& out, const Pending& p,
                                    const uint8_t* mask, int thread) {
  const int64_t s = p.first + p.next;
  const int32_t alternatives = step.sampling.num_logprobs[static_cast<size_t>(s)];
  float* const raw = sample_logits_.data() + s * model_.vocab;
  const auto& beams = step.sampling.candidates;
  const bool beam = !beams.empty() && beams[static_cast<size_t>(s)] > 0;
  // Logprobs are of the raw logits, so sample from a copy.
  float* const work = alternatives >= 0 || beam ? copies_.data() + thread * model_.vocab : raw;
  if (work != raw && !beam) {
    std::memcpy(work, raw, static_cast<size_t>(model_.vocab) * sizeof(float));
  }
  int32_t token = p.inherited;
  if (token == 0) {
    Sampler& sampler = *samplers_[static_cast<size_t>(thread)];
    const SampleRow row{s, p.future_token, mask};
    token = beam ? fill_candidates(kernels_, sampler, step.sampling, row, raw, model_.vocab, work,
                                   out.candidates)
                 : sampler.sample(step.sampling, row, work);
  }
  if (alternatives >= 0) {
    fill_logprobs(kernels_, raw, model_.vocab, token, alternatives, out.logprobs, s);
  }
  return token;
}

}  // namespace tidemill
