"""Fields of Ollama's API that the schema does not declare, and neutral values of declared ones.

`server.dialects.fields` applies the tables.
"""

from __future__ import annotations

from tidemill.server.dialects.fields import ANY, Alias, Fields, Neutral

_PLACE = "models are placed when the server starts (tidemill serve --device, --threads)"

# What decides where and how fast a model computes cannot change an answer.
_COMPUTE: Fields = {
    **dict.fromkeys(
        ("num_gpu", "main_gpu", "num_thread", "num_batch"),
        Neutral(kinds=(int,), feature="values that are no integers"),
    ),
    **dict.fromkeys(
        ("use_mmap", "use_mlock", "numa", "low_vram"),
        Neutral(kinds=(bool,), feature="values that are no booleans"),
    ),
    # What is kept when a context is shifted: it never is.
    "num_keep": Neutral(kinds=(int,), feature="values that are no integers"),
}
_LOADING: Fields = {
    "f16_kv": Neutral((True,), feature="a choice of the KV cache's type here", instead=_PLACE),
    "logits_all": Neutral(kinds=(bool,), feature="values that are no booleans"),
    "vocab_only": Neutral((False,), feature="models without weights"),
    "embedding_only": Neutral((False,), feature="models for vectors by this name"),
    "num_gqa": Neutral((0, 1), feature="another shape than the model's"),
    "rope_frequency_base": Neutral((0,), feature="another rope than the model's"),
    "rope_frequency_scale": Neutral((0,), feature="another rope than the model's"),
}
_SAMPLERS: Fields = {
    "mirostat": Neutral((0,), feature="mirostat sampling"),
    "mirostat_tau": Neutral(kinds=(float,), feature="mirostat sampling"),
    "mirostat_eta": Neutral(kinds=(float,), feature="mirostat sampling"),
    "tfs_z": Neutral((1,), feature="tail-free sampling"),
    "penalize_newline": Neutral((True,), feature="penalties that spare line ends"),
}
OPTIONS: Fields = {
    **_COMPUTE,
    **_LOADING,
    **_SAMPLERS,
    # Values that mean the same as absence.
    "num_predict": Neutral((-1, -2, 0)),
    "seed": Neutral((-1,)),
    "stop": Neutral(("", [], [""])),
    "num_ctx": Neutral((0,)),
}

_NO_IMAGES = Neutral(([],), feature="images", instead="this server takes text")
GENERATION: Fields = {
    "shift": Neutral(
        (False,),
        feature="shifting of the context",
        instead='an answer ends where the context is full (done_reason "length")',
    ),
    "format": Neutral(("",)),
    "top_logprobs": Neutral((0,)),
    "_debug_render_only": Neutral((False,), feature="_debug_render_only"),
}
CHAT: Fields = {
    **GENERATION,
    "prompt": Neutral(feature="prompts in a chat", instead="send messages, or use /api/generate"),
    "system": Neutral(
        feature="system texts by this name", instead="send a message of the role system"
    ),
    "tools": Neutral(([],)),
}
GENERATE: Fields = {
    **GENERATION,
    "images": _NO_IMAGES,
    "suffix": Neutral(("",)),
    "context": Neutral(
        ([],),
        feature="a history as token ids",
        instead="send the history as messages to /api/chat",
    ),
    "template": Neutral(
        ("",),
        feature="templates of requests",
        instead="send raw: true and the whole prompt, or start the server with --chat-template",
    ),
    "messages": Neutral(feature="conversations here", instead="send them to /api/chat"),
    "tools": Neutral(([],), feature="tools here", instead="use /api/chat"),
    **dict.fromkeys(("width", "height", "steps"), Neutral((0,), feature="images")),
}
MESSAGE: Fields = {
    "images": _NO_IMAGES,
    "name": Alias("tool_name"),
    "reasoning_content": Alias("thinking"),
    "tool_calls": Neutral(([],)),
    **dict.fromkeys(("created_at", "logprobs"), Neutral(kinds=(ANY,))),
}
CALL: Fields = {"type": Neutral(("function",), feature="other calls than of functions")}
CALLED: Fields = {
    "index": Neutral(kinds=(int,), feature="values that are no integers"),
    "description": Neutral(kinds=(str,), feature="values that are no strings"),
}
SHOW: Fields = {
    "name": Alias("model"),
    "system": Neutral(("",), feature="other texts than the model's"),
    "template": Neutral(("",), feature="other templates than the model's"),
    "options": Neutral(({},), feature="other options than the model's"),
}
PULL: Fields = {
    "name": Alias("model"),
    "insecure": Neutral((False,), feature="sources without TLS"),
    **dict.fromkeys(("username", "password"), Neutral(("",), feature="accounts of a registry")),
}
_ELSEWHERE = "send from or files, and system, template, parameters and messages"
CREATE: Fields = {
    "name": Alias("model"),
    "from": Alias("base"),
    "quantization": Alias("quantize"),
    "adapters": Neutral(({},)),
    "template": Neutral(("",)),
    "system": Neutral(("",)),
    "license": Neutral(("", [])),
    "quantize": Neutral(("",)),
    "files": Neutral(({},)),
    "modelfile": Neutral(("",), feature="a Modelfile's text", instead=_ELSEWHERE),
    "path": Neutral(("",), feature="a Modelfile on the server's disk", instead=_ELSEWHERE),
    **dict.fromkeys(
        ("renderer", "parser", "requires", "remote_host", "draft"),
        Neutral(("",), feature="parts of Ollama's own engine", instead=_ELSEWHERE),
    ),
}
