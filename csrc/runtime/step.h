// A step as the executor sees it: copies of backends/base.py's StepInputs and StepOutputs with the same
// names and meaning.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tidemill {

class Adapter;

enum : uint8_t { kLogitsNone = 0, kLogitsLast = 1, kLogitsAll = 2 };
enum : uint8_t { kHiddenNone = 0, kHiddenLast = 1, kHiddenAll = 2 };

// Codes in StepOutput::sampled for a row without a token.
constexpr int32_t kNoTokenLeft = -1;      // the mask or bans left no token
constexpr int32_t kLogitsNotFinite = -2;  // a logit is NaN or infinite
constexpr int32_t kNotReached = -3;       // a draft before this position was rejected

// Options of a row that uses more of the sampler than the fields of SamplingInput: backends/base.py's
// SAMPLER_OPTIONS, field for field. docs/sampling.md has the definitions.
struct SamplerOptions {
  float typical_p, top_a, top_n_sigma, epsilon_cutoff, eta_cutoff;
  float xtc_probability, xtc_threshold;
  float dynatemp_range, dynatemp_exponent, smoothing_factor, smoothing_curve;
  float dry_multiplier, dry_base;
  int32_t dry_allowed_length, dry_penalty_last_n, repeat_last_n, no_repeat_ngram_size;
  int32_t allowed;  // row of SamplerExtras::allowed; -1: every token
};

// Rows with SamplerOptions; empty if no row has any.
struct SamplerExtras {
  std::vector<int32_t> row;  // per sampled position: its options, or -1
  std::vector<SamplerOptions> options;
  std::vector<int32_t> breakers_start, breakers;    // of DRY, ids by options
  std::vector<int32_t> bad_words_start, bad_words;  // by options: sequences, each after its length
  int64_t allowed_bytes = 0;
  std::vector<uint8_t> allowed;  // [masks, allowed_bytes], bits as of a token mask

  const SamplerOptions* of(int64_t s) const {
    if (row.empty() || row[static_cast<size_t>(s)] < 0) return nullptr;
    return &options[static_cast<size_t>(row[static_cast<size_t>(s)])];
  }
};

struct SamplingInput {
  std::vector<float> temperature, top_p, min_p, presence, frequency, repetition;
  std::vector<int32_t> top_k;
  std::vector<uint64_t> seed;
  std::vector<int32_t> choice, position, num_logprobs;
  std::vector<int32_t> bias_start, bias_id;
  std::vector<float> bias_value;
  std::vector<int32_t> history_start, history, history_prompt;
  std::vector<int32_t> candidates;  // per row; empty: no row is a beam
  SamplerExtras extras;

  int64_t rows() const { return static_cast<int64_t>(temperature.size()); }
};

// A matrix of block ids or block pairs, row-major.
struct Int32Table {
  int64_t rows = 0, columns = 0;
  std::vector<int32_t> values;
};

// The layers that a step computes of its last row, if not all. Their input was saved by the step that
// computed the layers before (begin > 0); their output is saved for the step that continues (end <
// layers).
struct LayerSlice {
  int64_t sequence = -1;  // sequence of that row; -1: the step computes all layers of all rows
  int64_t begin = 0, end = 0;

  explicit operator bool() const { return sequence >= 0; }
};

struct StepInput {
  int64_t step_id = 0;
  std::vector<int32_t> token_ids, row_start, context_len;
  std::vector<Int32Table> block_tables;  // per cache group
  std::vector<uint8_t> logits, sample, await_mask;
  std::vector<int32_t> drafts;  // per row: how many of its last tokens are drafts; empty: no row has any
  std::vector<int32_t> target_ids, target_logprobs;
  std::vector<Int32Table> copies;  // per cache group, columns = 2
  Int32Table states;     // recurrent models: [rows, 2], state read and state written
  Int32Table snapshots;  // [any, 3]: row, number of its tokens, state written after them
  SamplingInput sampling;
  LayerSlice slice;
  bool return_logits = false;
  std::vector<int32_t> skip;  // ascending: layers left out, for drafts; their number: the last norm
  std::vector<uint8_t> hidden;  // per row; empty: none requested
  std::vector<int32_t> hidden_layers;    // ascending: x in front of them, of the tokens of `hidden`
  std::vector<int32_t> override_tokens;  // ascending: tokens whose embedding is given
  std::vector<float> override_rows;      // [override_tokens, hidden]
  std::vector<int32_t> second;  // per row: first token of type 1; 0: none; empty: no row has any
  std::vector<int32_t> adapters;  // per row: slot of its adapter; -1: none; empty: no row has any
  // Per row what its slot held when the step was submitted; null: none; empty: no row has any.
  std::vector<std::shared_ptr<const Adapter>> held_adapters;

  int64_t rows() const { return static_cast<int64_t>(context_len.size()); }
  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  // The positions that a row samples, if it samples: the one after each of its drafts, and the one before.
  int64_t positions(size_t row) const { return drafts.empty() ? 1 : 1 + drafts[row]; }
  // Token whose logits a row samples first.
  int64_t first_sampled(size_t row) const { return row_start[row + 1] - positions(row); }
  // Tokens whose hidden states are requested.
  std::vector<int64_t> hidden_tokens() const {
    std::vector<int64_t> tokens;
    for (size_t r = 0; r < hidden.size(); ++r) {
      if (hidden[r] == kHiddenNone) continue;
      for (int64_t t = hidden[r] == kHiddenAll ? row_start[r] : first_sampled(r); t < row_start[r + 1]; ++t) {
        tokens.push_back(t);
      }
    }
    return tokens;
  }
  // Tokens whose final hidden states results are computed of, ascending: those, and all with logits.
  std::vector<int64_t> result_tokens() const {
    std::vector<int64_t> tokens;
    for (size_t r = 0; r < logits.size(); ++r) {
      const uint8_t of_hidden = hidden.empty() ? kHiddenNone : hidden[r];
      if (logits[r] == kLogitsNone && of_hidden == kHiddenNone) continue;
      const bool all = logits[r] == kLogitsAll || of_hidden == kHiddenAll;
      for (int64_t t = all ? row_start[r] : first_sampled(r); t < row_start[r + 1]; ++t) tokens.push_back(t);
    }
    return tokens;
  }
};

// Log-probabilities of `chosen.size()` tokens; ids and values are [that, width].
struct Logprobs {
  bool present = false;
  int64_t width = 0;
  std::vector<float> chosen;
  std::vector<int32_t> ids;
  std::vector<float> values;
};

// The most likely tokens of `rows` rows, best first: [rows, width]; ids are -1 beyond a row's last one.
struct Candidates {
  int64_t rows = 0, width = 0;
  std::vector<int32_t> ids;
  std::vector<float> scores, logprobs;
};

struct StepOutput {
  std::vector<int32_t> sampled;
  Logprobs logprobs, targets;
  Candidates candidates;
  int64_t logit_rows = 0;
  std::vector<float> logits;
  int64_t hidden_rows = 0;
  std::vector<float> hidden;
  int64_t hidden_layers = 0;
  std::vector<float> layer_hidden;  // [hidden_layers, hidden_rows, hidden]
  // Queued, forward (without waiting for packing), sampling, total.
  double seconds[4] = {0, 0, 0, 0};
};

}  // namespace tidemill
