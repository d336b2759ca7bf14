# Sources of the core beside its kernels, none of which knows Python: TIDEMILL_CORE_SOURCES.
set(TIDEMILL_CORE_SOURCES
  runtime/bandwidth.cpp
  runtime/checksum.cpp
  runtime/group.cpp
  runtime/idle_prefetcher.cpp
  runtime/latch.cpp
  runtime/prefault.cpp
  runtime/profile.cpp
  runtime/threadpool.cpp
  memory/cache.cpp
  memory/memory.cpp
  memory/states.cpp
  model/adapters.cpp
  model/attend.cpp
  model/attention.cpp
  model/build_model.cpp
  model/changes.cpp
  model/decoder.cpp
  model/embedding.cpp
  model/experts.cpp
  model/feed_forward.cpp
  model/latent_attention.cpp
  model/partial_rows.cpp
  model/products.cpp
  model/recurrent_mixer.cpp
  model/residual_stream.cpp
  model/rope.cpp
  model/route.cpp
  model/step_context.cpp
  model/step_kv.cpp
  model/weights.cpp
  sample/candidates.cpp
  sample/exp_row.cpp
  sample/filters.cpp
  sample/history.cpp
  sample/logprobs.cpp
  sample/race.cpp
  sample/sampler.cpp
  step/check.cpp
  step/executor.cpp
  step/queue.cpp
  step/run.cpp)
list(TRANSFORM TIDEMILL_CORE_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)

# What opens vocabularies and encodes text, a library of its own: TIDEMILL_TEXT_SOURCES.
set(TIDEMILL_TEXT_SOURCES
  text/characters.cpp
  text/encoder.cpp
  text/index.cpp
  text/json.cpp
  text/marks.cpp
  text/merges.cpp
  text/pattern.cpp
  text/repeats.cpp
  text/vocabulary.cpp
)
list(TRANSFORM TIDEMILL_TEXT_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
