"""llama.cpp's fields that the schema does not declare, and neutral values of declared ones."""

from __future__ import annotations

from tidemill.server.dialects.fields import ANY, Alias, Fields, Neutral

_SAMPLERS: Fields = {
    "typ_p": Alias("typical_p"),
    "tfs_z": Neutral((1,), feature="tail-free sampling"),
    "penalty_last_n": Alias("repeat_last_n"),
    "mirostat": Neutral((0,), feature="mirostat sampling"),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), Neutral(kinds=(float,), feature="mirostat")),
    "penalize_nl": Neutral((True,), feature="penalties that spare line ends"),
    "min_keep": Neutral((0, 1), feature="a least number of candidates"),
    "n_indent": Neutral((0,), feature="a least indentation"),
}
GENERATION: Fields = {
    **_SAMPLERS,
    # Where and when something is computed cannot change an answer; a text that a slow machine's
    # time limit does not cut is the answer of a fast one.
    **dict.fromkeys(
        ("id_slot", "slot_id", "n_keep", "n_discard"),
        Neutral(kinds=(int,), feature="values that are no integers"),
    ),
    **dict.fromkeys(
        ("t_max_prompt_ms", "t_max_predict_ms"),
        Neutral(kinds=(float,), feature="values that are no numbers"),
    ),
    "cache_prompt": Neutral(kinds=(bool,), feature="values that are no booleans"),
    "n_cache_reuse": Neutral((0,), feature="reuse of shifted caches"),
    "speculative.n_max": Neutral(kinds=(int,), feature="values that are no integers"),
    "speculative.n_min": Neutral(kinds=(int,), feature="values that are no integers"),
    "speculative.p_min": Neutral(kinds=(float,), feature="values that are no numbers"),
    "n": Alias("n_cmpl"),
    # A continued prompt is not parsed: all of the output is its text.
    "reasoning_format": Neutral(kinds=(str,), feature="values that are no strings"),
    "verbose": Neutral((False,), feature="the server's own view of a request"),
    "backend_sampling": Neutral(kinds=(bool,), feature="values that are no booleans"),
    "sse_ping_interval": Neutral(kinds=(int,), feature="values that are no integers"),
    "post_sampling_probs": Neutral((False,), feature="probabilities behind the filters"),
    "return_progress": Neutral((False,), feature="progress in answers"),
    "grammar_lazy": Neutral((False,), feature="lazy grammars"),
    "grammar_triggers": Neutral(([],), feature="lazy grammars"),
    "preserved_tokens": Neutral(kinds=(list,), feature="it"),
    "image_data": Neutral(([],), feature="images"),
    "messages": Neutral(feature="conversations here", instead="use /v1/chat/completions"),
    # Values that mean the same as absence.
    "n_predict": Neutral((-1,)),
    "seed": Neutral((-1,)),
    "n_probs": Neutral((0,)),
    "stop": Neutral(([], "")),
    "grammar": Neutral(("",)),
    "logit_bias": Neutral(([], {})),
    "response_fields": Neutral(([],)),
}
INFILL: Fields = {
    **GENERATION,
    "input_extra": Neutral(([],)),
    "prompt": Neutral(("",)),
}
TEMPLATE: Fields = {
    "tools": Neutral(([],)),
    "stream": Neutral(kinds=(bool,), feature="values that are no booleans"),
    **dict.fromkeys(("temperature", "max_tokens", "seed", "top_p", "stop"), Neutral(kinds=(ANY,))),
}
EMBEDDING: Fields = {"image_data": Neutral(([],), feature="images")}
