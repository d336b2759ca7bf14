# Sources of the core beside its kernels, none of which knows Python: TIDEMILL_CORE_SOURCES.
set(TIDEMILL_CORE_SOURCES
  idle_prefetcher.cpp
  bandwidth.cpp
  checksum.cpp
  latch.cpp
  memory.cpp
  prefault.cpp
  threadpool.cpp
  weights.cpp
  cache.cpp
  rope.cpp
  route.cpp
  attend.cpp
  build_model.cpp
  decoder.cpp
  decoder_experts.cpp
  decoder_feed.cpp
  decoder_latent.cpp
  decoder_products.cpp
  decoder_recurrent.cpp
  executor.cpp
  states.cpp
  step_check.cpp
  step_run.cpp
  step_queue.cpp
  sample/exp_row.cpp
  sample/filters.cpp
  sample/logprobs.cpp
  sample/sampler.cpp)
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
  text/vocabulary.cpp
)
list(TRANSFORM TIDEMILL_TEXT_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
