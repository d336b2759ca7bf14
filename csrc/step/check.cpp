#include "step/check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/error.h"

namespace tidemill {

namespace {

void require(bool holds, const char* field, const std::string& message) {
  if (!holds) throw internal_error(std::string(field) + ": " + message, field);
}

template <class T>
void require_size(const std::vector<T>& values, int64_t size, const char* field) {
  require(static_cast<int64_t>(values.size()) == size, field,
          "has " + std::to_string(values.size()) + " entries, needs " + std::to_string(size));
}

// Offsets must ascend from 0 to the number of values.
void require_offsets(const std::vector<int32_t>& offsets, int64_t count, int64_t total,
                     const char* field) {
  require_size(offsets, count + 1, field);
  require(offsets.front() == 0 && offsets.back() == total, field,
          "must run from 0 to " + std::to_string(total));
  for (size_t i = 1; i < offsets.size(); ++i) {
    require(offsets[i - 1] <= offsets[i], field, "must not descend");
  }
}

void check_rows(const StepInput& step) {
  const int64_t rows = step.rows(), tokens = step.tokens();
  require_offsets(step.row_start, rows, tokens, "row_start");
  require_size(step.logits, rows, "logits");
  require_size(step.sample, rows, "sample");
  require_size(step.await_mask, rows, "await_mask");
  require_size(step.target_ids, tokens, "target_ids");
  require_size(step.target_logprobs, rows, "target_logprobs");
  if (!step.hidden.empty()) require_size(step.hidden, rows, "hidden");
  for (const uint8_t wanted : step.hidden) require(wanted <= kHiddenAll, "hidden", "unknown value");
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    require(step.row_start[r] < step.row_start[r + 1], "row_start", "a row computes no token");
    require(step.logits[r] <= kLogitsAll, "logits", "unknown value");
    require(!step.sample[r] || step.logits[r] != kLogitsNone, "sample",
            "a sampling row needs its last logits");
    require(!step.await_mask[r] || step.sample[r], "await_mask", "only sampling rows take a mask");
  }
}

void check_drafts(const StepInput& step) {
  if (step.drafts.empty()) return;
  require_size(step.drafts, step.rows(), "drafts");
  for (size_t r = 0; r < step.drafts.size(); ++r) {
    const int32_t drafts = step.drafts[r], end = step.row_start[r + 1];
    require(drafts >= 0 && drafts < end - step.row_start[r], "drafts",
            "a row computes at least one token that is no draft");
    if (drafts == 0) continue;
    require(step.sample[r], "drafts", "only sampling rows verify drafts");
    for (int32_t t = step.row_start[r]; t < end; ++t) {
      require(step.token_ids[static_cast<size_t>(t)] >= 0, "drafts",
              "a draft follows known tokens, not one that another step samples");
    }
  }
}

void check_types(const StepInput& step, const StepLimits& limits) {
  if (step.second.empty()) return;
  require_size(step.second, step.rows(), "second");
  for (const int32_t second : step.second) {
    require(second == 0 || (second > 0 && limits.types > 1), "second", "no such type of tokens");
  }
}

void check_ascending(const std::vector<int32_t>& values, int64_t end, const char* field) {
  for (size_t i = 0; i < values.size(); ++i) {
    require(values[i] >= 0 && values[i] < end && (i == 0 || values[i - 1] < values[i]), field,
            "must ascend below " + std::to_string(end));
  }
}

void check_vectors(const StepInput& step, const StepLimits& limits) {
  check_ascending(step.hidden_layers, limits.layers + 1, "hidden_layers");
  // A slice's row computes its other layers in other steps.
  require(step.hidden_layers.empty() || (!step.hidden.empty() && !step.slice), "hidden_layers",
          "need the tokens of `hidden`, and all layers");
  check_ascending(step.override_tokens, step.tokens(), "override_tokens");
  require_size(step.override_rows, static_cast<int64_t>(step.override_tokens.size()) * limits.hidden,
               "override_rows");
}

void check_adapters(const StepInput& step) {
  if (step.adapters.empty()) return;
  require_size(step.adapters, step.rows(), "adapters");
  for (const int32_t slot : step.adapters) require(slot >= -1, "adapters", "no such slot");
}

void check_tokens(const StepInput& step, const StepLimits& limits) {
  for (const int32_t token : step.token_ids) {
    require(token < limits.vocab, "token_ids",
            std::to_string(token) + " is not below the vocabulary's " +
                std::to_string(limits.vocab));
    if (token >= 0) continue;
    const auto row = static_cast<int64_t>(-1 - static_cast<int64_t>(token));
    require(limits.previous_samples != nullptr &&
                row < static_cast<int64_t>(limits.previous_samples->size()) &&
                (*limits.previous_samples)[static_cast<size_t>(row)],
            "token_ids",
            "takes the token of row " + std::to_string(row) +
                " of the previous step, which samples none");
  }
  for (const int32_t target : step.target_ids) {
    require(target >= -1 && target < limits.vocab, "target_ids", "not a token");
  }
}

void check_blocks(const StepInput& step, const StepLimits& limits) {
  const KvCache& cache = limits.cache;
  require_size(step.block_tables, cache.groups(), "block_tables");
  require(step.copies.size() <= step.block_tables.size(), "copies", "more than cache groups");
  for (int64_t g = 0; g < static_cast<int64_t>(step.copies.size()); ++g) {
    const Int32Table& pairs = step.copies[static_cast<size_t>(g)];
    require(pairs.rows == 0 || pairs.columns == 2, "copies", "must be pairs");
    cache.check_blocks(g, pairs.values.data(), static_cast<int64_t>(pairs.values.size()));
  }
  for (int64_t r = 0; r < step.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    const int64_t first = step.context_len[i];
    const int64_t end = first + step.row_start[i + 1] - step.row_start[i];
    require(limits.causal || first == 0, "context_len", "an encoder's input is computed whole");
    require(first >= 0 && end <= limits.max_positions, "context_len",
            "row " + std::to_string(r) + " reaches position " + std::to_string(end - 1) +
                ", the backend was loaded for " + std::to_string(limits.max_positions));
    for (int64_t g = 0; g < cache.groups(); ++g) {
      const Int32Table& table = step.block_tables[static_cast<size_t>(g)];
      const int64_t window = cache.group(g).window;
      const int64_t oldest = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
      const int64_t begin_block = oldest / cache.block_size();
      const int64_t end_block = (end + cache.block_size() - 1) / cache.block_size();
      require(table.rows == step.rows() && end_block <= table.columns, "block_tables",
              "row " + std::to_string(r) + " has too few blocks");
      cache.check_blocks(g, table.values.data() + r * table.columns + begin_block,
                         end_block - begin_block);
    }
  }
}

void check_slice(const StepInput& step, int64_t layers) {
  const LayerSlice& slice = step.slice;
  if (!slice) return;
  require(step.states.rows == 0, "slice", "states of recurrent layers advance with whole rows");
  require(step.rows() > 0 && slice.begin >= 0 && slice.begin < slice.end && slice.end <= layers,
          "slice", "must be some of the last row's " + std::to_string(layers) + " layers");
  const size_t last = step.logits.size() - 1;
  require(slice.end == layers || step.logits[last] == kLogitsNone, "slice",
          "a row has logits only after its last layer");
}

// States advance through all layers: a model that has some skips all or none.
void check_skip(const StepInput& step, const StepLimits& limits) {
  if (step.skip.empty()) return;
  check_ascending(step.skip, limits.layers + 1, "skip");
  const auto layers = std::lower_bound(step.skip.begin(), step.skip.end(), limits.layers);
  require(!limits.cache.states().needed() || layers - step.skip.begin() == limits.layers, "skip",
          "a model with states skips all layers or none");
  require(!step.slice && step.states.rows == 0, "skip", "only whole rows without states skip layers");
}

void check_history(const SamplingInput& s, int64_t vocab) {
  const auto total = static_cast<int64_t>(s.history.size());
  require_offsets(s.history_start, s.rows(), total, "sampling.history_start");
  for (size_t r = 0; r < s.history_prompt.size(); ++r) {
    const int32_t length = s.history_start[r + 1] - s.history_start[r];
    require(s.history_prompt[r] >= 0 && (s.history_prompt[r] <= length || length == 0),
            "sampling.history_prompt", "exceeds the history");
  }
  for (const int32_t token : s.history) {
    require(token >= 0 && token < vocab, "sampling.history", "not a token");
  }
}

void check_bad_words(const SamplerExtras& x, size_t o, int64_t vocab) {
  const auto end = static_cast<size_t>(x.bad_words_start[o + 1]);
  for (auto i = static_cast<size_t>(x.bad_words_start[o]); i < end;) {
    const int32_t length = x.bad_words[i];
    require(length > 0 && i + 1 + static_cast<size_t>(length) <= end, "sampling.extras.bad_words",
            "a sequence has no such length");
    for (size_t j = i + 1; j <= i + static_cast<size_t>(length); ++j) {
      require(x.bad_words[j] >= 0 && x.bad_words[j] < vocab, "sampling.extras.bad_words", "not a token");
    }
    i += static_cast<size_t>(length) + 1;
  }
}

void check_extras(const SamplingInput& s, int64_t vocab) {
  const SamplerExtras& x = s.extras;
  if (x.row.empty()) return;
  const auto count = static_cast<int64_t>(x.options.size());
  require_size(x.row, s.rows(), "sampling.extras.row");
  for (const int32_t o : x.row) require(o >= -1 && o < count, "sampling.extras.row", "no such options");
  require_offsets(x.breakers_start, count, static_cast<int64_t>(x.breakers.size()),
                  "sampling.extras.breakers_start");
  require_offsets(x.bad_words_start, count, static_cast<int64_t>(x.bad_words.size()),
                  "sampling.extras.bad_words_start");
  const int64_t masks =
      x.allowed_bytes > 0 ? static_cast<int64_t>(x.allowed.size()) / x.allowed_bytes : 0;
  for (size_t o = 0; o < x.options.size(); ++o) {
    const SamplerOptions& options = x.options[o];
    require(options.allowed >= -1 && options.allowed < masks, "sampling.extras.allowed", "no such mask");
    require(options.dry_allowed_length >= 1 && options.no_repeat_ngram_size >= 0, "sampling.extras",
            "a length is too small");
    check_bad_words(x, o, vocab);
  }
}

void check_sampling(const StepInput& step, int64_t vocab) {
  int64_t rows = 0;
  for (size_t r = 0; r < step.sample.size(); ++r) rows += step.sample[r] ? step.positions(r) : 0;
  const SamplingInput& s = step.sampling;
  require_size(s.temperature, rows, "sampling.temperature");
  require_size(s.top_p, rows, "sampling.top_p");
  require_size(s.min_p, rows, "sampling.min_p");
  require_size(s.presence, rows, "sampling.presence");
  require_size(s.frequency, rows, "sampling.frequency");
  require_size(s.repetition, rows, "sampling.repetition");
  require_size(s.top_k, rows, "sampling.top_k");
  require_size(s.seed, rows, "sampling.seed");
  require_size(s.choice, rows, "sampling.choice");
  require_size(s.position, rows, "sampling.position");
  require_size(s.num_logprobs, rows, "sampling.num_logprobs");
  require_size(s.history_prompt, rows, "sampling.history_prompt");
  if (!s.candidates.empty()) require_size(s.candidates, rows, "sampling.candidates");
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    require(s.temperature[r] >= 0.0f && std::isfinite(s.temperature[r]), "sampling.temperature",
            "must be finite and not negative");
    require(s.top_p[r] > 0.0f && s.top_p[r] <= 1.0f, "sampling.top_p", "must be in (0, 1]");
    require(s.min_p[r] >= 0.0f && s.min_p[r] <= 1.0f, "sampling.min_p", "must be in [0, 1]");
    require(s.repetition[r] > 0.0f, "sampling.repetition", "must be above 0");
  }
  const auto biases = static_cast<int64_t>(s.bias_id.size());
  require_size(s.bias_value, biases, "sampling.bias_value");
  require_offsets(s.bias_start, rows, biases, "sampling.bias_start");
  for (const int32_t id : s.bias_id) {
    require(id >= 0 && id < vocab, "sampling.bias_id", "not a token");
  }
  for (const float value : s.bias_value) {
    require(value < INFINITY, "sampling.bias_value", "must be a number or -inf");
  }
  check_history(s, vocab);
  check_extras(s, vocab);
}

}  // namespace

void check_step(const StepInput& step, const StepLimits& limits) {
  check_rows(step);
  check_drafts(step);
  check_types(step, limits);
  check_adapters(step);
  check_tokens(step, limits);
  check_blocks(step, limits);
  limits.cache.states().check(step);
  check_slice(step, limits.layers);
  check_skip(step, limits);
  check_vectors(step, limits);
  check_sampling(step, limits.vocab);
}

}  // namespace tidemill
