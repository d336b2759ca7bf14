"""Flags and commands of other servers -> the equivalent here, for error messages."""

from __future__ import annotations

_CONTEXT = "the context's length is --max-model-len"
_LAYERS = "there is nothing to offload; --backend torch --device cuda computes on a GPU"
_TOOLS = "tool calls are read without a flag; --tool-format names the format where that fails"
_TEMPLATE = "a chat template is used without a flag; --chat-template gives another"
_LOG = "prompts and outputs are never logged; --log-level says how much else is"

OTHER_FLAGS: dict[str, str] = {
    # vLLM
    "--gpu-memory-utilization": "the KV cache is sized from free memory, or by --kv-memory 4GiB",
    "--max-num-batched-tokens": "tokens per step are --max-step-tokens",
    "--kv-cache-dtype": "the KV cache's type is --kv-dtype",
    "--quantization": "files say how they are quantized; --quantize quantizes float weights",
    "--enable-prefix-caching": "it is on; --no-prefix-caching turns it off",
    "--enable-chunked-prefill": "it is always on",
    "--enable-auto-tool-choice": _TOOLS,
    "--tool-call-parser": _TOOLS,
    "--reasoning-parser": "thinking is read without a flag, or by --reasoning-format",
    "--trust-remote-code": "code of model repositories is never run",
    "--tokenizer": "a model's own tokenizer is used",
    "--disable-log-requests": _LOG,
    "--allowed-origins": "origins of web pages are --cors-origin, one by one",
    "--ssl-certfile": "the certificate is --tls-cert",
    "--ssl-keyfile": "the certificate's key is --tls-key",
    # llama.cpp
    "--model": "the model is an argument: `tidemill serve MODEL`",
    "-m": "the model is an argument: `tidemill serve MODEL`",
    "--ctx-size": _CONTEXT,
    "-c": _CONTEXT,
    "--n-gpu-layers": _LAYERS,
    "-ngl": _LAYERS,
    "--alias": "the name that clients use is --served-name",
    "--parallel": "sequences that run at once are --max-num-seqs",
    "-np": "sequences that run at once are --max-num-seqs",
    "-t": "compute threads are --threads",
    "--jinja": _TEMPLATE,
    "--chat-template-file": "a file with a chat template is --chat-template FILE",
    "--cache-type-k": "the KV cache's type is --kv-dtype",
    "--cache-type-v": "the KV cache's type is --kv-dtype",
    "--n-predict": "an answer's length is --max-tokens of `run`, max_tokens of a request",
    "--temp": "--temperature is an option of `run`, a field of a request to a server",
    "-p": "the prompt is an argument: `tidemill run MODEL PROMPT`",
    # Ollama
    "--keepalive": "how long models stay loaded is --keep-alive of `serve`",
    "--format": "a JSON schema for the answer is --schema FILE of `run`",
    "--nowordwrap": "--plain shows text as it comes",
    "--hidethinking": "--thinking hide does that",
}

OTHER_COMMANDS: dict[str, str] = {
    "ls": "models are listed by `tidemill list`",
    "kill": "Ctrl-C or SIGTERM ends a server; `tidemill stop MODEL` unloads a model",
    "chat": "a chat in the terminal is `tidemill run`",
    "complete": "`tidemill run MODEL PROMPT` answers a prompt",
    "push": "models are not published; `tidemill cp` gives one a second name here",
    "delete": "models are removed by `tidemill rm`",
    "import": "models are added by `tidemill pull PATH` and `tidemill create`",
    "help": "`tidemill -h` lists the commands",
}
