"""The table of fields that clients of the OpenAI dialect send, beyond those that it declares.

Fields of OpenAI, vLLM, llama.cpp, SGLang, TGI, OpenRouter and others: for each, the values that
change nothing here, and other names of declared fields. The mechanism is `server.fields`.
"""

from __future__ import annotations

from typing import Any

from tidemill.server.fields import ANY, Alias, Fields, Group, Neutral
from tidemill.text.conversation import NOT_SHOWN

_ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p")
_ELSEWHERE = "tool calling here"
_CHAT = "send it to /v1/chat/completions"


def _in_our_order(value: Any) -> bool:
    """A list of llama.cpp's samplers that asks for the order in which ours are applied.

    The filters behind the temperature are of one distribution, so their order does not matter.
    Samplers that are always off may stand anywhere.
    """
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    names = [name for name in value if name not in ("dry", "xtc", "typ_p", "typical_p", "tfs_z",
                                                    "top_n_sigma", "mirostat")]  # fmt: skip
    return tuple(names[:2]) == _ORDER[:2] and sorted(names[2:]) == sorted(_ORDER[2:])


_IDENTITY = Neutral(kinds=(str,), asks="values that are no strings")

# Samplers and searches that are not built, each at the value that turns it off; and what only
# tunes one of them, at any value.
_OFF: Fields = {
    "typical_p": Neutral((1,), asks="typical sampling"),
    "typical": Neutral((1,), asks="typical sampling"),
    "typ_p": Neutral((1,), asks="typical sampling"),
    "tfs_z": Neutral((1,), asks="tail-free sampling"),
    "tfs": Neutral((1,), asks="tail-free sampling"),
    "top_a": Neutral((0,), asks="top-a sampling"),
    "mirostat": Neutral((0,), asks="mirostat sampling"),
    "mirostat_mode": Neutral((0,), asks="mirostat sampling"),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), Neutral(kinds=(float,), asks="mirostat")),
    "dry_multiplier": Neutral((0,), asks="DRY sampling"),
    **dict.fromkeys(
        ("dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        Neutral(kinds=(float,), asks="DRY sampling"),
    ),
    "dry_sequence_breakers": Neutral(kinds=(list, str), asks="DRY sampling"),
    "xtc_probability": Neutral((0,), asks="XTC sampling"),
    "xtc_threshold": Neutral(kinds=(float,), asks="XTC sampling"),
    "dynamic_temperature": Neutral((False,), asks="dynamic temperature"),
    "dynatemp_low": Neutral(kinds=(float,), asks="dynamic temperature"),
    "dynatemp_high": Neutral(kinds=(float,), asks="dynamic temperature"),
    "dynatemp_range": Neutral((0,), asks="dynamic temperature"),
    "dynatemp_exponent": Neutral(kinds=(float,), asks="dynamic temperature"),
    "top_n_sigma": Neutral((-1, 0), asks="top-n-sigma sampling"),
    "nsigma": Neutral((0,), asks="top-n-sigma sampling"),
    "skew": Neutral((0,), asks="skewed sampling"),
    "smoothing_factor": Neutral((0,), asks="quadratic sampling"),
    "smoothing_curve": Neutral(kinds=(float,), asks="quadratic sampling"),
    "temperature_last": Neutral((False,), asks="another order of samplers"),
    "sampler_priority": Neutral(asks="another order of samplers"),
    "sampler_order": Neutral(asks="another order of samplers"),
    "repeat_last_n": Neutral(
        (-1,), asks="penalties over a part of the text", instead="ours are over all of it"
    ),
    "penalty_last_n": Neutral((-1,), asks="penalties over a part of the text"),
    "repetition_penalty_range": Neutral((0, -1), asks="penalties over a part of the text"),
    "penalize_nl": Neutral((True,), asks="penalties that spare line ends"),
    "no_repeat_ngram_size": Neutral((0,), asks="forbidden n-grams"),
    "encoder_repetition_penalty": Neutral((1,), asks="an encoder's penalty"),
    "epsilon_cutoff": Neutral((0,), asks="epsilon sampling"),
    "eta_cutoff": Neutral((0,), asks="eta sampling"),
    "samplers": Neutral(
        test=_in_our_order,
        shown='["penalties", "temperature", then "top_k", "top_p" and "min_p" in any order]',
        asks="another order of samplers",
    ),
    "do_sample": Neutral(
        (True,), asks="greedy decoding by this name", instead="send temperature: 0"
    ),
    "use_beam_search": Neutral((False,), asks="beam search"),
    "num_beams": Neutral((1,), asks="beam search"),
    "num_beam_groups": Neutral((1,), asks="beam search"),
    "length_penalty": Neutral((1,), asks="beam search"),
    "diversity_penalty": Neutral((0,), asks="beam search"),
    "early_stopping": Neutral((False,), asks="beam search"),
    "penalty_alpha": Neutral((0,), asks="contrastive search"),
    "guidance_scale": Neutral((1,), asks="classifier-free guidance"),
    "negative_prompt": Neutral(("",), asks="classifier-free guidance"),
    "watermark": Neutral((False,), asks="watermarks"),
}
# What is done with the text and the tokens, where the value asks for what is done.
_TEXT: Fields = {
    "skip_special_tokens": Neutral((True,), asks="special tokens in the text"),
    "spaces_between_special_tokens": Neutral(
        kinds=(bool,), asks="special tokens in the text"
    ),  # there are none in the text
    "include_stop_str_in_output": Neutral((False,), asks="stop strings in the output"),
    "no_stop_trim": Neutral((False,), asks="stop strings in the output"),
    "detokenize": Neutral((True,), asks="answers without text"),
    "return_full_text": Neutral((False,), asks="the prompt in the output by this name"),
    "truncate_prompt_tokens": Neutral(asks="truncation of prompts"),
    "truncate": Neutral((False,), asks="truncation of prompts"),
    "truncation": Neutral(("disabled", False), asks="truncation of prompts"),
    "truncation_length": Neutral(asks="truncation of prompts"),
    "prompt_truncate_len": Neutral(asks="truncation of prompts"),
    "context_length_exceeded_behavior": Neutral(("error",), asks="truncation of prompts"),
    "add_bos_token": Neutral((True,), asks="prompts without their start tokens"),
    "ban_eos_token": Neutral((False,), asks="banned end tokens", instead="send ignore_eos"),
    "n_keep": Neutral((0, -1), asks="shifting of the context"),
    "n_discard": Neutral((0,), asks="shifting of the context"),
    "context_shift": Neutral((False,), asks="shifting of the context"),
    "allowed_token_ids": Neutral(([],), asks="allowed_token_ids", instead="logit_bias bans tokens"),
    "bad_words": Neutral(([],), asks="bad_words", instead="logit_bias bans tokens"),
    "bad_words_ids": Neutral(([],), asks="bad_words_ids", instead="logit_bias bans tokens"),
    **dict.fromkeys(
        ("custom_token_bans", "banned_tokens", "banned_strings"),
        Neutral(("", []), asks="banned texts", instead="logit_bias bans tokens"),
    ),
    "logits_processors": Neutral(([],), asks="code of clients"),
    "custom_logit_processor": Neutral(("",), asks="code of clients"),
    "stop_regex": Neutral(("", []), asks="stop expressions"),
    "n_indent": Neutral((0,), asks="a least indentation"),
    "min_keep": Neutral((0, 1), asks="a least number of candidates"),
    "n_probs": Neutral((0,), asks="logprobs by this name", instead="send logprobs"),
    "top_n_tokens": Neutral((0,), asks="logprobs by this name", instead="send logprobs"),
    "post_sampling_probs": Neutral((False,), asks="probabilities behind the filters"),
    "return_tokens_as_token_ids": Neutral((False,), asks="token ids in logprobs"),
    "return_token_ids": Neutral((False,), asks="token ids in answers"),
    "return_tokens": Neutral((False,), asks="token ids in answers"),
    "return_hidden_states": Neutral((False,), asks="hidden states"),
    "return_progress": Neutral((False,), asks="progress in answers"),
    "timings_per_token": Neutral((False,), asks="timings in answers"),
    "details": Neutral((False,), asks="details by this name"),
    "decoder_input_details": Neutral((False,), asks="details by this name"),
    "response_fields": Neutral(([],), asks="a choice of the answer's members"),
    "t_max_predict_ms": Neutral((0, -1), asks="a time for the output", instead="send timeout"),
    "t_max_prompt_ms": Neutral((0, -1), asks="a time for the prompt", instead="send timeout"),
    "guided_decoding_backend": Neutral(("auto",), asks="another library"),
    "guided_whitespace_pattern": Neutral(("",), asks="a pattern of white space"),
    "grammar_string": Neutral(("",), asks="grammars by this name", instead="send grammar"),
    "grammar_lazy": Neutral((False,), asks="lazy grammars"),
    "grammar_triggers": Neutral(([],), asks="lazy grammars"),
    "preserved_tokens": Neutral(kinds=(list,), asks="it"),
    "lora": Neutral(([],), asks="adapters"),
    "image_data": Neutral(([],), asks="images"),
    "mm_processor_kwargs": Neutral(({},), asks="images"),
    "result_format": Neutral(("message",), asks="another form of answers"),
    "incremental_output": Neutral((True,), asks="streams that repeat what they said"),
    "raw_output": Neutral((False,), asks="raw output"),
    "perf_metrics_in_response": Neutral((False,), asks="timings in answers"),
    "auto_max_new_tokens": Neutral((False,), asks="auto_max_new_tokens", instead="send -1"),
    "extra_body": Neutral(({},), asks="extra_body", instead="put its members into the body"),
    "extra_headers": Neutral(({},), asks="headers in the body"),
    "extra_query": Neutral(({},), asks="queries in the body"),
}
# Names and bookkeeping that cannot change an answer.
_BOOKS: Fields = {
    **dict.fromkeys(
        ("session_id", "request_id", "trace_id", "conversation_id", "rid", "user_id"), _IDENTITY
    ),
    "prompt_cache_retention": _IDENTITY,
    "prompt_cache_options": Neutral(kinds=(dict,), asks="values that are no objects"),
    "cache_prompt": Neutral((True,), asks="prompts without caching", instead="send cache_salt"),
    "id_slot": Neutral((-1,), asks="a choice of slots"),
    "slot_id": Neutral((-1,), asks="a choice of slots"),
    "kv_transfer_params": Neutral(({},), asks="a transfer of caches"),
    "vllm_xargs": Neutral(({},), asks="vllm_xargs"),
    "nvext": Neutral(({},), asks="nvext"),
    "speculative_ngram": Neutral(kinds=(bool,), asks="values that are no booleans"),
    "prompt_lookup_num_tokens": Neutral((0,), asks="prompt lookup"),
    "draft_model": Neutral(asks="a choice of draft models"),
    "ttl": Neutral((-1,), asks="unloading of the model"),
    "keep_alive": Neutral((-1, "-1"), asks="unloading of the model"),
    **dict.fromkeys(
        ("num_ctx", "n_ctx"),
        Neutral(
            asks="a context length per request",
            instead="the server's is set at its start (--max-model-len)",
        ),
    ),
    "options": Neutral(({},), asks="options", instead="put its members into the body itself"),
}
_HOSTED: Fields = {
    "moderation": Neutral(asks="moderation"),
    "safe_prompt": Neutral((False,), asks="a safety prompt"),
    "safety_model": Neutral(asks="moderation"),
    "enable_search": Neutral((False,), asks="web search"),
    "search_parameters": Neutral(({"mode": "off"},), asks="web search"),
    "deferred": Neutral((False,), asks="deferred answers"),
    "plugins": Neutral(([],), asks="plugins"),
    "transforms": Neutral(([],), asks="transforms"),
    "models": Neutral(([],), asks="a choice of models"),
    "route": Neutral(asks="a choice of models"),
    "provider": Neutral(({},), asks="a choice of providers"),
}
_SAME: Fields = {
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
}
# Of declared fields: values that mean what their absence means.
_ABSENT: Fields = {
    "max_tokens": Neutral((-1,)),
    "stop": Neutral(("", [], [""])),
    "grammar": Neutral(("",)),
    "store": Neutral((False,), asks="stored completions"),
    "logit_bias": Neutral(({}, [])),
}

GENERATION: Fields = {**_OFF, **_TEXT, **_BOOKS, **_HOSTED, **_SAME, **_ABSENT}

_REASONING = Group(
    {
        "effort": Alias("reasoning_effort"),
        "max_tokens": Alias("thinking_token_budget"),
        "enabled": Alias("enable_thinking"),
        "exclude": Alias("include_reasoning", {True: False, False: None}, strict=True),
        "summary": Neutral(asks="summaries of the thinking"),
        "generate_summary": Neutral(asks="summaries of the thinking"),
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
        asks="plain prompts in a chat", instead="send messages, or the prompt to /v1/completions"
    ),
    "input": Neutral(asks="the Responses API", instead="send messages"),
    "system": Neutral(
        asks="system texts by this name", instead="send a message of the role system"
    ),
    "format": Neutral(asks="formats by this name", instead="send response_format"),
    "best_of": Neutral((1,), asks="best_of in a chat"),
    "echo": Neutral((False,), asks="echo in a chat"),
    "suffix": Neutral(("",), asks="fill in the middle"),
    "add_special_tokens": Neutral((False,), asks="start tokens around what the template writes"),
    "chat_template": Neutral(
        asks="chat templates of requests", instead="the server's is --chat-template"
    ),
    "documents": Neutral(([],)),
    "functions": Neutral(([],), asks="the older form of tools", instead="send tools"),
    "function_call": Neutral(
        ("none",), asks="the older form of tool_choice", instead="send tool_choice"
    ),
    "modalities": Neutral((["text"],), asks="other modalities than text"),
    "audio": Neutral(asks="audio output"),
    "prediction": Neutral(asks="predicted outputs"),
    "web_search_options": Neutral(asks="web search"),
    "reasoning": _REASONING,
    "thinking": _THINKING,
    "think": Alias({bool: "enable_thinking", str: "reasoning_effort"}),
    "reasoning_format": Neutral(("auto", "deepseek", "parsed"), asks="thinking within the content"),
    "reasoning_in_content": Neutral((False,), asks="thinking within the content"),
    "separate_reasoning": Neutral((True,), asks="thinking within the content"),
    "stream_reasoning": Neutral((True,), asks="thinking that is not streamed"),
    "thinking_forced_open": Neutral((False,), asks="thinking_forced_open"),
    "parse_tool_calls": Neutral((True,), asks="calls within the content"),
    "prompt_mode": Neutral(asks="prompt modes"),
}

COMPLETION: Fields = {
    **GENERATION,
    "logprobs": Neutral((False,)),
    "add_special_tokens": Neutral((True,), asks="prompts without their start tokens"),
    "suffix": Neutral(("",), asks="fill in the middle"),
    "modalities": Neutral((["text"],), asks="other modalities than text"),
    "tools": Neutral(([],), asks=_ELSEWHERE, instead=_CHAT),
    "tool_choice": Neutral(("none", "auto"), asks=_ELSEWHERE, instead=_CHAT),
    "parallel_tool_calls": Neutral(kinds=(bool,), asks=_ELSEWHERE, instead=_CHAT),
    "functions": Neutral(([],), asks=_ELSEWHERE, instead=_CHAT),
    "function_call": Neutral(("none",), asks=_ELSEWHERE, instead=_CHAT),
    **dict.fromkeys(
        ("enable_thinking", "reasoning_effort", "thinking_token_budget", "thinking_budget"),
        Neutral(asks="thinking here", instead=_CHAT),
    ),
    "think": Neutral((False,), asks="thinking here", instead=_CHAT),
    "messages": Neutral(asks="conversations here", instead=_CHAT),
    "inputs": Neutral(asks="prompts by this name", instead="send prompt"),
    "parameters": Neutral(({},), asks="parameters", instead="put its members into the body itself"),
}

TOKENIZE: Fields = {
    "content": Alias("prompt"),
    "add_special": Alias("add_special_tokens"),
}

VECTORS: Fields = {
    **_BOOKS,
    "truncate_prompt_tokens": Neutral(asks="truncation of inputs"),
    "truncate": Neutral((False, "NONE"), asks="truncation of inputs"),
    "truncation": Neutral((False,), asks="truncation of inputs"),
    "add_special_tokens": Neutral((True,), asks="inputs without their start tokens"),
    "priority": Neutral((0,), asks="priorities of vectors"),
}
EMBEDDING: Fields = {
    **VECTORS,
    "normalize": Neutral(asks="vectors of another length than the model's"),
    "embedding_types": Neutral((["float"],), asks="other types than float"),
    "input_type": Neutral(asks="input types", instead="prompt_name picks one of the model's"),
}
RERANK: Fields = {
    **VECTORS,
    "max_chunks_per_doc": Neutral(asks="documents in parts"),
    "rank_fields": Neutral((["text"],), asks="other members than text"),
}

STREAM_OPTIONS: Fields = {
    "include_obfuscation": Neutral((False,), asks="obfuscation of a stream's sizes")
}

# Members of messages as answers carry them, and clients send them back.
RETURNED: Fields = dict.fromkeys(sorted(NOT_SHOWN), Neutral(kinds=(ANY,)))
MESSAGE: Fields = {
    **RETURNED,
    "audio": Neutral(asks="audio"),
    "thinking": Alias("reasoning_content"),
    "images": Neutral(([],), asks="images"),
    "function_call": Neutral(asks="the older form of tool calls", instead="send tool_calls"),
    "prefix": Neutral((False,), asks="prefix", instead="send continue_final_message"),
    "partial": Neutral((False,), asks="partial", instead="send continue_final_message"),
    "tool_calls": Neutral(([],)),
    "name": Neutral(("",)),
}
