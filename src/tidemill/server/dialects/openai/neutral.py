"""Fields that clients of the OpenAI dialect send beyond those that the schema declares.

The tables cover OpenAI, vLLM, llama.cpp, SGLang, TGI, OpenRouter and others: values of these fields
that have no effect here, and aliases of declared fields. `server.dialects.fields` applies them.
"""

from __future__ import annotations

from typing import Any

from tidemill.server.dialects.fields import ANY, Alias, Fields, Group, Neutral
from tidemill.server.dialects.sampler_order import EVERYWHERE, ORDER
from tidemill.text.conversation import NOT_SHOWN

_ELSEWHERE = "tool calling here"
_CHAT = "send it to /v1/chat/completions"


def _in_our_order(value: Any) -> bool:
    """True for a list of llama.cpp's samplers in the order of this server, with none left out that
    is on where nothing is said."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    used = [name for name in value if name in ORDER]
    return {*EVERYWHERE} <= {*used} and used == sorted(used, key=lambda name: ORDER[name])


_IDENTITY = Neutral(kinds=(str,), feature="values that are no strings")

# Unsupported samplers and searches, each with the value that turns it off; and their parameters,
# with any value.
_SAMPLERS: Fields = {
    **dict.fromkeys(("typical", "typ_p"), Alias("typical_p")),
    "tfs_z": Neutral((1,), feature="tail-free sampling"),
    "tfs": Neutral((1,), feature="tail-free sampling"),
    "mirostat": Neutral((0,), feature="mirostat sampling"),
    "mirostat_mode": Neutral((0,), feature="mirostat sampling"),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), Neutral(kinds=(float,), feature="mirostat")),
    "dynamic_temperature": Neutral(
        (False,),
        feature="dynamic temperature by this name",
        instead="send temperature (the middle) and dynatemp_range (half of the width)",
    ),
    "dynatemp_low": Neutral(kinds=(float,), feature="dynamic temperature"),
    "dynatemp_high": Neutral(kinds=(float,), feature="dynamic temperature"),
    "nsigma": Alias("top_n_sigma"),
    "skew": Neutral((0,), feature="skewed sampling"),
    "temperature_last": Neutral((False,), feature="another order of samplers"),
    "sampler_priority": Neutral(feature="another order of samplers"),
    "sampler_order": Neutral(feature="another order of samplers"),
    "penalty_last_n": Alias("repeat_last_n"),
    **dict.fromkeys(("repetition_penalty_range", "rep_pen_range"), Alias("repeat_last_n", {0: -1})),
    "penalize_nl": Neutral((True,), feature="penalties that spare line ends"),
    "encoder_repetition_penalty": Neutral((1,), feature="an encoder's penalty"),
    "samplers": Neutral(
        test=_in_our_order,
        shown='["penalties", "dry", "temperature", "top_n_sigma", "top_k", "top_p" and "min_p" in '
        'any order, "typ_p", "xtc"]',
        feature="another order of samplers",
    ),
    "num_beams": Alias("beam_width"),
    "num_return_sequences": Alias("n"),
    "num_beam_groups": Neutral((1,), feature="diverse beam search"),
    "diversity_penalty": Neutral((0,), feature="diverse beam search"),
    "penalty_alpha": Neutral((0,), feature="contrastive search"),
    "guidance_scale": Neutral((1,), feature="classifier-free guidance"),
    "negative_prompt": Neutral(("",), feature="classifier-free guidance"),
    **dict.fromkeys(("watermark", "watermarking"), Neutral((False,), feature="watermarks")),
    "repetition_decay": Neutral((0,), feature="penalties that fade"),
    "adaptive_target": Neutral((0, -1, -0.01), feature="adaptive sampling"),
    "adaptive_decay": Neutral(kinds=(float,), feature="adaptive sampling"),
}
# Processing of text and tokens, with the values that this server implements.
_TEXT: Fields = {
    "detokenize": Neutral((True,), feature="answers without text"),
    "return_full_text": Neutral((False,), feature="the prompt in the output by this name"),
    "truncate": Neutral(
        (False,),
        feature="truncation of prompts by this name",
        instead="send truncate_prompt_tokens",
    ),
    "truncation": Neutral(("disabled", False), feature="truncation of prompts"),
    "prompt_truncate_len": Neutral(
        feature="truncation of prompts by this name", instead="send truncate_prompt_tokens"
    ),
    "context_length_exceeded_behavior": Neutral(("error",), feature="truncation of prompts"),
    "add_bos_token": Neutral((True,), feature="prompts without their start tokens"),
    "n_keep": Neutral((0, -1), feature="shifting of the context"),
    "n_discard": Neutral((0,), feature="shifting of the context"),
    "context_shift": Neutral((False,), feature="shifting of the context"),
    "allowed_token_ids": Neutral(([],)),
    "bad_words": Neutral(([],)),
    "bad_words_ids": Neutral(([],)),
    "custom_token_bans": Neutral(("", [])),
    "banned_tokens": Alias("custom_token_bans"),
    "banned_strings": Neutral(
        ("", []), feature="texts that are banned however they are written", instead="send bad_words"
    ),
    "logits_processors": Neutral(([],), feature="code of clients"),
    "custom_logit_processor": Neutral(("",), feature="code of clients"),
    "stop_regex": Neutral(("", []), feature="stop expressions"),
    "n_indent": Neutral((0,), feature="a least indentation"),
    "min_keep": Neutral((0, 1), feature="a least number of candidates"),
    "n_probs": Neutral((0,), feature="logprobs by this name", instead="send logprobs"),
    "top_n_tokens": Neutral((0,), feature="logprobs by this name", instead="send logprobs"),
    "post_sampling_probs": Neutral((False,), feature="probabilities behind the filters"),
    "return_tokens": Neutral((False,), feature="token ids in answers"),
    "return_hidden_states": Neutral((False,), feature="hidden states"),
    "return_progress": Neutral((False,), feature="progress in answers"),
    "details": Neutral((False,), feature="details by this name"),
    "decoder_input_details": Neutral((False,), feature="details by this name"),
    "response_fields": Neutral(([],), feature="a choice of the answer's members"),
    "t_max_predict_ms": Neutral((0, -1), feature="a time for the output", instead="send timeout"),
    "t_max_prompt_ms": Neutral((0, -1), feature="a time for the prompt", instead="send timeout"),
    "guided_decoding_backend": Neutral(("auto",), feature="another library"),
    "guided_whitespace_pattern": Neutral(("",), feature="a pattern of white space"),
    "grammar_lazy": Neutral((False,), feature="lazy grammars"),
    "grammar_triggers": Neutral(([],), feature="lazy grammars"),
    "preserved_tokens": Neutral(kinds=(list,), feature="it"),
    "image_data": Neutral(([],), feature="images"),
    "mm_processor_kwargs": Neutral(({},), feature="images"),
    "result_format": Neutral(("message",), feature="another form of answers"),
    "incremental_output": Neutral((True,), feature="streams that repeat what they said"),
    "raw_output": Neutral((False,), feature="raw output"),
    "perf_metrics_in_response": Neutral((False,), feature="timings in answers"),
    "auto_max_new_tokens": Neutral((False,), feature="auto_max_new_tokens", instead="send -1"),
    "return_token_offsets": Neutral((False,), feature="offsets of tokens", instead="send logprobs"),
    "return_mm_kwargs": Neutral(kinds=(bool,), feature="values that are no booleans"),
    "return_cached_tokens_details": Neutral(
        (False,), feature="more of it", instead="usage.prompt_tokens_details has cached_tokens"
    ),
    "logprob_token_ids": Neutral(
        feature="logprobs of chosen tokens", instead="send logprobs or top_logprobs"
    ),
    "token_ids_logprob": Neutral(
        feature="logprobs of chosen tokens", instead="send logprobs or top_logprobs"
    ),
    "return_routed_experts": Neutral((False,), feature="the experts that were used"),
    **dict.fromkeys(
        ("routed_experts_prompt_start", "routed_experts_start_len"),
        Neutral((0,), feature="the experts that were used"),
    ),
    "media_io_kwargs": Neutral(({},), feature="images"),
    "images_config": Neutral(({},), feature="images"),
    "verbose": Neutral((False,), feature="the server's own view of a request"),
    "extra_body": Neutral(({},), feature="extra_body", instead="put its members into the body"),
    "extra_headers": Neutral(({},), feature="headers in the body"),
    "extra_query": Neutral(({},), feature="queries in the body"),
}
# Names and bookkeeping that cannot change an answer.
_BOOKKEEPING: Fields = {
    **dict.fromkeys(
        ("session_id", "request_id", "trace_id", "conversation_id", "rid", "user_id"), _IDENTITY
    ),
    "prompt_cache_retention": _IDENTITY,
    "prompt_cache_options": Neutral(kinds=(dict,), feature="values that are no objects"),
    # A cached prefix gives the same answer, bit for bit.
    "cache_prompt": Neutral(kinds=(bool,), feature="values that are no booleans"),
    **dict.fromkeys(
        ("speculative.n_max", "speculative.n_min", "speculative.p_min"),
        Neutral(kinds=(float,), feature="values that are no numbers"),
    ),
    **dict.fromkeys(("api_type", "api_server"), _IDENTITY),
    "id_slot": Neutral((-1,), feature="a choice of slots"),
    "slot_id": Neutral((-1,), feature="a choice of slots"),
    # What decides where and in how many chunks something is computed and sent, and who counts it.
    **dict.fromkeys(("extra_key", "ngram_corpus_id"), _IDENTITY),
    "custom_labels": Neutral(kinds=(dict,), feature="values that are no objects"),
    **dict.fromkeys(
        ("stream_interval", "sse_ping_interval", "max_tokens_second"),
        Neutral(kinds=(int,), feature="values that are no integers"),
    ),
    "backend_sampling": Neutral(kinds=(bool,), feature="values that are no booleans"),
    **dict.fromkeys(
        ("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        Neutral(feature="a choice of workers"),
    ),
    **dict.fromkeys(
        ("bootstrap_host", "bootstrap_port", "bootstrap_room"),
        Neutral(feature="a transfer of caches"),
    ),
    "ec_transfer_params": Neutral(({},), feature="a transfer of caches"),
    "session_params": Neutral(({},), feature="sessions", instead="send the whole conversation"),
    "custom_params": Neutral(({},), feature="parameters of custom code"),
    "kv_transfer_params": Neutral(({},), feature="a transfer of caches"),
    "vllm_xargs": Neutral(({},), feature="vllm_xargs"),
    "nvext": Neutral(({},), feature="nvext"),
    "speculative_ngram": Neutral(kinds=(bool,), feature="values that are no booleans"),
    "prompt_lookup_num_tokens": Neutral((0,), feature="prompt lookup"),
    "draft_model": Neutral(feature="a choice of draft models"),
    "ttl": Alias("keep_alive"),
    "options": Neutral(({},), feature="options", instead="put its members into the body itself"),
}
_HOSTED: Fields = {
    "moderation": Neutral(feature="moderation"),
    "safe_prompt": Neutral((False,), feature="a safety prompt"),
    "safety_model": Neutral(feature="moderation"),
    "enable_search": Neutral((False,), feature="web search"),
    "search_parameters": Neutral(({"mode": "off"},), feature="web search"),
    "deferred": Neutral((False,), feature="deferred answers"),
    "plugins": Neutral(([],), feature="plugins"),
    "transforms": Neutral(([],), feature="transforms"),
    "models": Neutral(([],), feature="a choice of models"),
    "route": Neutral(feature="a choice of models"),
    "provider": Neutral(({},), feature="a choice of providers"),
}
_ALIASES: Fields = {
    "repeat_penalty": Alias("repetition_penalty"),
    "n_predict": Alias("max_tokens"),
    "num_predict": Alias("max_tokens"),
    "max_new_tokens": Alias("max_tokens"),
    "max_output_tokens": Alias("max_tokens"),
    "random_seed": Alias("seed"),
    "sampler_seed": Alias("seed", {-1: None}),
    "stopping_strings": Alias("stop"),
    "stop_sequences": Alias("stop"),
    "regex": Alias("guided_regex"),
    "grammar_string": Alias("grammar", {"": None}),
    "n_ctx": Alias("num_ctx"),
    "ebnf": Alias("guided_grammar"),
    "rep_pen": Alias("repetition_penalty"),
    "no_stop_trim": Alias("include_stop_str_in_output"),
    "do_sample": Alias("temperature", {False: 0, True: None}, strict=True),
}
# Declared fields: values that mean the same as absence.
_DEFAULTS: Fields = {
    "max_tokens": Neutral((-1,)),
    "stop": Neutral(("", [], [""])),
    "grammar": Neutral(("",)),
    "store": Neutral((False,), feature="stored completions"),
    "logit_bias": Neutral(({}, [])),
}

# What an answer shows: members of bodies of chat and completions, and refused elsewhere.
ANSWERS: Fields = {
    "echo": Neutral((False,), feature="the input in the output"),
    "add_special_tokens": Neutral((False,), feature="start tokens around what the template writes"),
    "return_tokens_as_token_ids": Neutral((False,), feature="token ids in logprobs"),
    "return_token_ids": Neutral((False,), feature="token ids in answers"),
    "include_timings": Neutral((False,), feature="timings in answers"),
    "timings_per_token": Neutral((False,), feature="timings in answers"),
    "prediction": Neutral(feature="predicted outputs"),
}

GENERATION: Fields = {**_SAMPLERS, **_TEXT, **_BOOKKEEPING, **_HOSTED, **_ALIASES, **_DEFAULTS}

_REASONING = Group(
    {
        "effort": Alias("reasoning_effort"),
        "max_tokens": Alias("thinking_token_budget"),
        "enabled": Alias("enable_thinking"),
        "exclude": Alias("include_reasoning", {True: False, False: None}, strict=True),
        "summary": Neutral(feature="summaries of the thinking"),
        "generate_summary": Neutral(feature="summaries of the thinking"),
    }
)
_THINKING = Group(
    {
        "type": Alias(
            "enable_thinking",
            {"enabled": True, "disabled": False, "adaptive": None, "auto": None},
            strict=True,
        ),
        "budget_tokens": Alias("thinking_token_budget"),
    }
)

CHAT: Fields = {
    **GENERATION,
    "max_completion_tokens": Neutral((-1,)),
    "prompt": Neutral(
        feature="plain prompts in a chat", instead="send messages, or the prompt to /v1/completions"
    ),
    "input": Neutral(feature="the Responses API", instead="send messages"),
    "system": Neutral(
        feature="system texts by this name", instead="send a message of the role system"
    ),
    "format": Neutral(feature="formats by this name", instead="send response_format"),
    "suffix": Neutral(("",), feature="fill in the middle", instead="send it to /v1/completions"),
    "chat_template": Neutral(
        feature="chat templates of requests", instead="the server's is --chat-template"
    ),
    "documents": Neutral(([],)),
    "functions": Neutral(([],), feature="the older form of tools", instead="send tools"),
    "function_call": Neutral(
        ("none",), feature="the older form of tool_choice", instead="send tool_choice"
    ),
    "modalities": Neutral((["text"],), feature="other modalities than text"),
    "audio": Neutral(feature="audio output"),
    "web_search_options": Neutral(feature="web search"),
    "reasoning": _REASONING,
    "thinking": _THINKING,
    "think": Alias({bool: "enable_thinking", str: "reasoning_effort"}),
    "reasoning_format": Neutral(
        ("auto", "deepseek", "parsed"), feature="thinking within the content"
    ),
    "reasoning_in_content": Neutral((False,), feature="thinking within the content"),
    "separate_reasoning": Neutral((True,), feature="thinking within the content"),
    "stream_reasoning": Neutral((True,), feature="thinking that is not streamed"),
    "thinking_forced_open": Neutral((False,), feature="thinking_forced_open"),
    "parse_tool_calls": Neutral((True,), feature="calls within the content"),
    "prompt_mode": Neutral(feature="prompt modes"),
}

COMPLETION: Fields = {
    **GENERATION,
    "logprobs": Neutral((False,)),
    "add_bos_token": Alias("add_special_tokens"),
    "return_full_text": Alias("echo"),
    "n_probs": Alias("logprobs", {0: None}),
    "suffix": Neutral(("",)),
    "modalities": Neutral((["text"],), feature="other modalities than text"),
    "tools": Neutral(([],), feature=_ELSEWHERE, instead=_CHAT),
    "tool_choice": Neutral(("none", "auto"), feature=_ELSEWHERE, instead=_CHAT),
    "parallel_tool_calls": Neutral(kinds=(bool,), feature=_ELSEWHERE, instead=_CHAT),
    "functions": Neutral(([],), feature=_ELSEWHERE, instead=_CHAT),
    "function_call": Neutral(("none",), feature=_ELSEWHERE, instead=_CHAT),
    **dict.fromkeys(
        ("enable_thinking", "reasoning_effort", "thinking_token_budget", "thinking_budget"),
        Neutral(feature="thinking here", instead=_CHAT),
    ),
    "think": Neutral((False,), feature="thinking here", instead=_CHAT),
    "include_reasoning": Neutral((True,), feature="thinking here", instead=_CHAT),
    "messages": Neutral(feature="conversations here", instead=_CHAT),
    "inputs": Neutral(feature="prompts by this name", instead="send prompt"),
    "parameters": Neutral(
        ({},), feature="parameters", instead="put its members into the body itself"
    ),
}

TOKENIZE: Fields = {
    "content": Alias("prompt"),
    "add_special": Alias("add_special_tokens"),
    "parse_special": Neutral((True,), feature="special tokens read as plain text"),
    "with_pieces": Neutral((False,), feature="pieces by this name", instead="return_token_strs"),
}

VECTORS: Fields = {
    **dict.fromkeys(
        ("num_ctx", "n_ctx"),
        Neutral(feature="a context length by this name", instead="send truncate_prompt_tokens"),
    ),
    **_BOOKKEEPING,
    # NONE, START and END: Cohere's and NVIDIA's.
    "truncate": Neutral(("NONE",)),
    "truncation": Alias("truncate"),
    "truncation_direction": Alias(
        "truncation_side", {"Left": "left", "Right": "right"}, strict=True
    ),
    "add_special_tokens": Neutral((True,), feature="inputs without their start tokens"),
    "priority": Neutral((0,), feature="priorities of vectors"),
}
EMBEDDING: Fields = {
    **VECTORS,
    "normalize": Neutral(feature="vectors of another length than the model's"),
    "embedding_types": Neutral((["float"],), feature="other types than float"),
    **dict.fromkeys(
        ("input_type", "task"),
        Neutral(feature="input types", instead="prompt_name picks one of the model's"),
    ),
    "embedding_type": Neutral(("float",), feature="other types than float"),
    "late_chunking": Neutral((False,), feature="late chunking"),
}
RERANK: Fields = {
    **VECTORS,
    "top_k": Alias("top_n"),
    "max_chunks_per_doc": Neutral(feature="documents in parts"),
    "rank_fields": Neutral((["text"],), feature="other members than text"),
    # Text Embeddings Inference
    "raw_scores": Neutral((False,), feature="scores before the model's last function"),
}

STREAM_OPTIONS: Fields = {
    "include_obfuscation": Neutral((False,), feature="obfuscation of a stream's sizes")
}

# Members of answer messages that clients send back in the history.
RETURNED: Fields = dict.fromkeys(sorted(NOT_SHOWN), Neutral(kinds=(ANY,)))
MESSAGE: Fields = {
    **RETURNED,
    "audio": Neutral(feature="audio"),
    "thinking": Alias("reasoning_content"),
    "images": Neutral(([],), feature="images"),
    "is_error": Neutral((False,), feature="errors by this name", instead="say it in the content"),
    "function_call": Neutral(feature="the older form of tool calls", instead="send tool_calls"),
    "prefix": Neutral((False,), feature="prefix", instead="send continue_final_message"),
    "partial": Neutral((False,), feature="partial", instead="send continue_final_message"),
    "tool_calls": Neutral(([],)),
    "name": Neutral(("",)),
}
