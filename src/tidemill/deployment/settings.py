"""The table of settings: flags of `tidemill serve` and keys of the deployment file come from it.

A key is written as in the file (underscores; dashes are read as well), and its flag is the same
word with dashes. A `Kind` says what a value must be; docs/deployment.md is made from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tidemill.base.log import FORMATS
from tidemill.contract.config import (
    BACKENDS,
    BLOCK_SIZES,
    DTYPES,
    HIGHEST,
    KV_DTYPES,
    QUANTIZATIONS,
    ROLES,
    EngineConfig,
)
from tidemill.contract.quotas import Level
from tidemill.deployment import checks, kinds
from tidemill.deployment.kinds import Kind


class Apply(StrEnum):
    """How a changed value reaches a running server."""

    IN_PLACE = "in place"  # requests in flight go on; new ones see it
    ENGINE = "engine"  # that model's engine is replaced
    SERVER = "restart"  # a reload that changes it is rejected


class Setting(msgspec.Struct, frozen=True):
    """A setting.

    Attributes:
        key: its name in its table of the file.
        kind: what a value must be.
        default: as it would be written; None: chosen at start, or off.
        help: one or two sentences for `--help` and the documents; where `default` is None, it ends
            with ``default: `` and what happens then.
        apply: how a change is applied.
        names: flags as typed, if they differ from the key's name.
        flag: whether `serve` has a flag for it.
        secret: its value is never printed.
        one_model: as a flag it needs a server of exactly one model.
    """

    key: str
    kind: Kind
    default: Any
    help: str
    apply: Apply
    names: tuple[str, ...] = ()
    flag: bool = True
    secret: bool = False
    one_model: bool = False

    @property
    def flag_name(self) -> str:
        """The flag as typed: ``--max-model-len``."""
        first = self.names[0] if self.names else f"--{self.key.replace('_', '-')}"
        return first.partition("/")[0]

    @property
    def envvar(self) -> str:
        """The environment variable that is read if the flag is absent."""
        return f"TIDEMILL_{self.key.upper()}"

    @property
    def unset(self) -> str:
        """What happens if nobody sets it and `default` is None."""
        return self.help.partition("default: ")[2].rstrip(".") or "none"


_ENGINE: Mapping[str, Any] = dict(
    zip(EngineConfig.__struct_fields__[2:], EngineConfig.__struct_defaults__, strict=True)
)


def _engine(key: str, kind: Kind, help: str, **more: Any) -> Setting:
    return Setting(key, kind, _ENGINE[key], help, Apply.ENGINE, **more)


def _bounded(key: str) -> Kind:
    return kinds.integer(1, HIGHEST[key])


SERVER = (
    Setting("host", kinds.text("an address"), "127.0.0.1", "Address to listen on.", Apply.SERVER),
    Setting(
        *("port", kinds.integer(0, 65535), 8000, "Port to listen on; 0 takes a free one."),
        Apply.SERVER,
    ),
    Setting(
        *("grpc_port", kinds.integer(0, 65535), None),
        "Port for the KServe protocol over gRPC, which needs the extra grpc; 0 takes a free one; "
        "default: not served.",
        Apply.SERVER,
    ),
    Setting(
        *("memory", kinds.size(), None),
        "Memory that all loaded models may use together, such as 24GiB; default: from free memory.",
        Apply.IN_PLACE,
    ),
    Setting(
        *("keep_alive", kinds.duration(), "forever"),
        "How long a model that has no work stays loaded; forever: until its memory is needed.",
        Apply.IN_PLACE,
    ),
    Setting(
        *("stall_timeout", kinds.number(1, 86400, "seconds"), 5.0),
        "Seconds without progress in a step after which the engine is replaced.",
        Apply.SERVER,
    ),
    Setting(
        *("drain_timeout", kinds.number(0, 86400, "seconds"), 10.0),
        "Seconds that running requests have after SIGTERM; a second one ends them.",
        Apply.IN_PLACE,
    ),
    Setting(
        *("resumable_streams", kinds.switch(), False),
        "Every stream of events can be resumed for 60 s, without a header that asks for it.",
        Apply.SERVER,
    ),
    Setting(
        *("log_level", kinds.choice(("debug", "info", "warning", "error")), "info"),
        "The least that is logged.",
        Apply.SERVER,
    ),
    Setting("log_format", kinds.choice(FORMATS), "text", "Of every line on stderr.", Apply.SERVER),
    Setting(
        *("database", checks.DATABASE, None),
        "Where keys, limits, usage and audit are kept: sqlite:///PATH, "
        "postgresql://USER:PASSWORD@HOST/NAME or none; default: tidemill.db in TIDEMILL_HOME.",
        Apply.SERVER,
        secret=True,
    ),
    Setting(
        *("database_outage", kinds.duration(), "1h"),
        "How long keys and limits of the database go on counting while it does not answer; "
        "forever, or 0: not at all.",
        Apply.SERVER,
    ),
    Setting(
        *("content", kinds.choice(("memory", "database")), "memory"),
        "Where stored responses and conversations are kept; in the database they are encrypted and "
        "survive a restart (docs/content.md).",
        Apply.SERVER,
    ),
    Setting(
        *("recent_requests", kinds.integer(0, 100_000), 512),
        "How many of the latest requests can be explained (tidemill explain); 0: none.",
        Apply.SERVER,
    ),
    Setting(
        *("keep_explanations", kinds.duration(), 0.0),
        "How long the database keeps the explanations of requests, such as 7d; 0: they are kept in "
        "memory alone.",
        Apply.SERVER,
    ),
    Setting(
        *("metrics_aliases", kinds.choice(("none", "vllm")), "none"),
        "Also export metrics under the names of this server, for dashboards made for it "
        "(docs/metrics.md).",
        Apply.SERVER,
    ),
    Setting(
        *("otel", checks.OTEL, "auto"),
        "Send traces and metrics over OTLP (extra otel): auto (where OTEL_EXPORTER_OTLP_ENDPOINT "
        "is set), on, off or the collector's URL (docs/observability.md).",
        Apply.SERVER,
    ),
    Setting(
        *("otel_protocol", kinds.choice(("grpc", "http/protobuf")), None),
        "Of OTLP; default: OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf.",
        Apply.SERVER,
    ),
    Setting(
        *("otel_sample", kinds.number(0, 1), None),
        "Share of the traces that begin here that are recorded; those of clients as the client "
        "says; default: OTEL_TRACES_SAMPLER, else all.",
        Apply.SERVER,
    ),
    Setting(
        *("otel_steps", kinds.switch(), False),
        "Each step of an engine is a span of its own, as many of them as --otel-sample says.",
        Apply.SERVER,
    ),
    Setting(
        *("energy", checks.ENERGY, "auto"),
        "Energy of requests: auto (by this machine's counters: RAPL, NVML), off, or its power "
        'while it computes, such as "65W", for where there are none: then it is called estimated.',
        Apply.SERVER,
    ),
    Setting(
        *("carbon_intensity", checks.INTENSITY, None),
        "Grams of carbon dioxide a kilowatt-hour: a number, or a file that is kept current with "
        "one; default: not known.",
        Apply.SERVER,
    ),
    Setting(
        *("page", kinds.choice(("on", "off")), "on"),
        "The page for people at `/`; its files need no key and say nothing of the server.",
        Apply.SERVER,
    ),
)

ADMISSION = (
    Setting(
        *("max_queue_tokens", kinds.integer(0, kinds.UNBOUNDED), None),
        "Tokens that may wait; default: from the KV cache and the measured rate.",
        Apply.SERVER,
    ),
    Setting(
        *("max_queue_time", kinds.number(0, 86400, "seconds", above=True), None),
        "Seconds a request may wait for its first step; default: no limit.",
        Apply.SERVER,
    ),
    Setting(
        *("ttft_objective_ms", kinds.number(0, 86_400_000, "milliseconds", above=True), None),
        "Refuse (429) what would not have its first token by then; default: off.",
        Apply.SERVER,
    ),
)

SECURITY = (
    Setting(
        *("api_key", kinds.several(checks.API_KEY, "keys, each " + checks.API_KEY.what), ()),
        "Key that clients must send as a Bearer token; repeatable.",
        Apply.SERVER,
        names=("--api-key",),
        secret=True,
    ),
    Setting(
        *("api_keys", kinds.file(), None),
        "TOML or JSON file of keys with names, roles, weights; SIGHUP rereads.",
        Apply.SERVER,
        names=("--api-keys",),
    ),
    Setting(
        *("require_keys", kinds.switch(), False),
        "Require a key although there is none yet: `tidemill keys create` makes one.",
        Apply.SERVER,
        names=("--require-keys",),
    ),
    Setting(
        *("region", kinds.text("a name"), None),
        "Where this server is: keys with a residency are served only where it is the same; "
        "default: none, and such keys are refused.",
        Apply.SERVER,
    ),
    Setting(
        *("oidc_issuer", checks.ISSUER, None),
        "URL of an OpenID Connect issuer whose tokens are taken as keys (extra `oidc`); "
        "default: none.",
        Apply.SERVER,
        flag=False,
    ),
    Setting(
        *("oidc_audience", kinds.text("a name"), None),
        "What its tokens must be for (`aud`); default: none, and an issuer needs one.",
        Apply.SERVER,
        flag=False,
    ),
    Setting(
        *("oidc_role_claim", kinds.text("a claim's name"), "roles"),
        "Claim with roles, such as tidemill-admin; without one: user.",
        Apply.SERVER,
        flag=False,
    ),
    Setting(
        *("oidc_team_claim", kinds.text("a claim's name"), "team"),
        "Claim with the name of a team of the database.",
        Apply.SERVER,
        flag=False,
    ),
    Setting(
        *("share_prefix_cache", kinds.switch(), False),
        "Let clients with different keys hit each other's prefixes.",
        Apply.SERVER,
        names=("--share-prefix-cache",),
    ),
    Setting(
        *("tls_cert", kinds.file(), None),
        "PEM file of the server's certificate: serve HTTPS.",
        Apply.SERVER,
    ),
    Setting(
        *("tls_key", kinds.file(), None),
        "PEM file of its private key, unless --tls-cert holds it.",
        Apply.SERVER,
    ),
    Setting(
        *("tls_client_ca", kinds.file(), None),
        "PEM file of authorities; clients must show a certificate of theirs.",
        Apply.SERVER,
    ),
    Setting(
        *("cors_origin", kinds.several(checks.ORIGIN, "origins, each " + checks.ORIGIN.what), ()),
        "Origin whose web pages may use the API ('*': all); repeatable. Default: none.",
        Apply.SERVER,
    ),
    Setting(
        *("allowed_host", kinds.several(kinds.text(), "host names"), ()),
        "Host name under which this server is reached without a key; repeatable.",
        Apply.SERVER,
    ),
    Setting(
        *("trusted_proxy", kinds.several(checks.PROXY, "addresses or networks"), ()),
        "Address of a proxy whose X-Forwarded-For is believed; repeatable.",
        Apply.SERVER,
    ),
    Setting(
        *("insecure", kinds.switch(), False),
        "Listen beyond this machine although there is no key.",
        Apply.SERVER,
        names=("--insecure",),
    ),
)

QUOTAS = tuple(
    Setting(*(level.value, checks.LIMITS, {}), text, Apply.IN_PLACE, flag=False)
    for level, text in (
        (Level.SERVER, "Limits of all requests together, such as `tokens_per_minute`."),
        (Level.ORGANISATION, "Limits of each organisation that has no limit of its own on it."),
        (Level.TEAM, "Limits of each team."),
        (Level.USER, "Limits of each user."),
        (Level.KEY, "Limits of each key; without API keys, of each client's address."),
    )
)

PRICES = (
    Setting(
        *("currency", kinds.text("the name of a currency"), "USD", "Of the prices, for reports."),
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("models", checks.PRICES, {}),
        "Prices per million tokens by model or pattern: `input` of the prompt, `cached_input` of "
        "what the prefix cache had (default: as input), `output` of generated tokens.",
        Apply.IN_PLACE,
        flag=False,
    ),
)

MODEL = (
    Setting(
        *("name", checks.MODEL_NAME, None, "Name clients use; default: the source's."),
        Apply.ENGINE,
        flag=False,
    ),
    Setting(
        *("source", checks.SOURCE, None),
        "Which model: a path (`./`, `/`, `~`, or a .gguf file), or a name as for `tidemill serve`; "
        "default: `name`.",
        Apply.ENGINE,
        flag=False,
    ),
    Setting(
        *("file", kinds.text(), None),
        "Of a model on the hub: which GGUF file, or which folder of its parts.",
        Apply.ENGINE,
        one_model=True,
    ),
    Setting(
        *("revision", kinds.text(), None),
        "Of a model on the hub: branch, tag or commit; default: main.",
        Apply.ENGINE,
        one_model=True,
    ),
    Setting(
        *("aliases", kinds.several(checks.MODEL_NAME, "names"), (), "Further names of the model."),
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("pin", kinds.switch(), False),
        "Load the model at start and never unload it for another.",
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("adapters", checks.ADAPTERS, {}),
        "Adapters (LoRA) of the model: name = path of a PEFT folder or GGUF file, or name of one "
        "in the library "
        "(docs/adapters.md). A reload adds and replaces; unload the others over the API.",
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("adapter_folder", kinds.folder(), None),
        "A folder whose adapters the model has as well, named as their subfolders or GGUF "
        "files; it is looked at every two seconds. A reload may give another one, or the first.",
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("keep_alive", kinds.duration(), None),
        "How long the model stays loaded without work; default: the server's.",
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("system", kinds.text(), None),
        "System prompt of conversations that begin without one.",
        Apply.IN_PLACE,
        flag=False,
    ),
    Setting(
        *("chat_template", checks.TEMPLATE, None),
        "File with a chat template instead of the model's own, or the name of one it has.",
        Apply.IN_PLACE,
    ),
    Setting(
        *("tool_format", kinds.text("a format's name"), "auto"),
        "How the model writes tool calls; auto reads it from the chat template.",
        Apply.IN_PLACE,
    ),
    Setting(
        *("reasoning_format", kinds.text("a format's name"), "auto"),
        "How the model marks its thinking; auto reads it from the chat template.",
        Apply.IN_PLACE,
    ),
    _engine(
        *("backend", kinds.choice(BACKENDS)),
        "native (C++), torch, or transformers (slow; for models without a family here); auto: "
        "native, or transformers where a model needs it.",
    ),
    _engine(
        *("device", kinds.text("a device's name")),
        "cpu, or a torch device for the backends torch and transformers.",
    ),
    _engine("dtype", kinds.choice(DTYPES), "Computing type."),
    _engine(
        *("quantize", kinds.choice(QUANTIZATIONS)),
        "Quantize float weights at load; `tidemill quantize` writes more types.",
    ),
    _engine("kv_dtype", kinds.choice(KV_DTYPES), "Type of the KV cache."),
    _engine("block_size", kinds.choice(BLOCK_SIZES), "Tokens per KV block: 16, 32, 64 or 128."),
    _engine(
        *("max_model_len", _bounded("max_model_len")),
        "Tokens a request may use; default: the model's, bounded by memory.",
    ),
    _engine("max_num_seqs", _bounded("max_num_seqs"), "Sequences that may run at once."),
    _engine("max_step_tokens", _bounded("max_step_tokens"), "Tokens computed per step."),
    _engine("kv_memory", kinds.size(), "KV cache size, such as 4GiB; default: from free memory."),
    _engine(
        *("kv_ram", kinds.size()),
        "Memory for KV blocks that the cache evicts, such as 8GiB: they come back where that is "
        "quicker than to compute them. Default: none. See docs/kv-tiers.md.",
    ),
    _engine(
        *("kv_disk", checks.KV_DISK),
        "Folder for KV blocks, and after a colon how much they may take, such as "
        "/var/cache/kv:50GiB: conversations go on from there after a restart. Engines may share "
        "it. Default: none.",
    ),
    _engine(
        *("kv_listen", checks.ADDRESS),
        "HOST:PORT where other servers of the model get this one's KV blocks and move requests "
        "to; the key is in the variable TIDEMILL_KV_KEY. Default: nowhere. See "
        "docs/kv-transfer.md.",
    ),
    _engine(
        *("kv_peers", checks.ADDRESSES),
        "HOST:PORT of other servers' kv_listen, separated by commas: their KV blocks are fetched "
        "where that is quicker than to compute them. Default: none.",
    ),
    _engine(
        *("role", kinds.choice(ROLES)),
        "What this server does with kv_peers and kv_listen: prefill computes prompts for others, "
        "decode has others compute its long prompts, both does either, by what there is to do. "
        "See docs/kv-transfer.md.",
    ),
    _engine(
        *("adapter_memory", kinds.size()),
        "Memory that adapters (LoRA) may take; those used least recently leave first. Default: an "
        "eighth of what is free when the first one is loaded.",
    ),
    _engine(
        *("threads", _bounded("threads")),
        "Compute threads; default: the CPUs this process may use.",
    ),
    _engine(
        *("tensor_parallel", _bounded("tensor_parallel")),
        "Processes that compute the model together, each with a part of its weights, KV cache and "
        "threads; answers stay the same, bit for bit (docs/parallel.md).",
        names=("--tensor-parallel", "--tensor-parallel-size"),
    ),
    _engine(
        *("pipeline_parallel", _bounded("pipeline_parallel")),
        "Processes that compute the model's layers one part after the other, each with its layers' "
        "weights and KV cache; answers stay the same, bit for bit (docs/parallel.md).",
        names=("--pipeline-parallel", "--pipeline-parallel-size"),
    ),
    _engine(
        *("pipeline_peers", checks.ADDRESSES),
        "HOST:PORT of `tidemill rank` on other machines, separated by commas, which compute all "
        "parts of the layers but the first; the key is in the variable TIDEMILL_KV_KEY. Default: "
        "processes of this machine.",
    ),
    _engine(
        *("prefix_caching", kinds.switch(), "Find blocks of earlier prompts again."),
        names=("--prefix-caching/--no-prefix-caching",),
    ),
    _engine(
        *("isa", checks.ISA),
        "Force an instruction set: amx, avx512, avx512bf16, avx512bw, avxvnni or avx2 (x86), "
        "i8mm or neon (Arm), portable (`tidemill doctor` shows which run here); default: the best.",
    ),
    _engine(
        *("packed_cache", checks.PACKED_CACHE),
        "Folder for packed weights, so that the next start is quick; auto: in the user's cache "
        "directory; off: none.",
    ),
    _engine(
        *("max_itl_ms", kinds.number(1, HIGHEST["max_itl_ms"], "milliseconds")),
        "Time between two tokens of a stream that prefill and other streams may cost; "
        "default: chosen (see docs/operations.md).",
    ),
    _engine(
        *("speculate", checks.SPECULATE),
        "Draft tokens of the output, which the model verifies several in one step; the answers "
        "stay the same. lookup: what followed the latest tokens where they occurred before in "
        "prompt and output; draft=MODEL: also a smaller model of the same vocabulary; "
        "medusa=PATH: also Medusa heads; skip: also the model itself without some layers; "
        "eagle=PATH: also an EAGLE-3 head; mtp: also the layer that the checkpoint has for it; "
        "auto: whatever there is, as measured; off: nothing, unless a request says it.",
    ),
    _engine(
        *("lookup_answers", _bounded("lookup_answers")),
        "Tokens of recent answers of the same tenant and cache salt in which lookup finds drafts "
        "as well: agents repeat themselves. Default: none. See docs/speculation.md.",
    ),
)

ENGINE_KEYS = tuple(setting.key for setting in MODEL if setting.key in _ENGINE)
"""Settings of a model that are fields of its `EngineConfig`."""

VERSION = (
    Setting(
        *("version", checks.VERSION, None),
        "What distinguishes it: version 2 of chat is also served as chat@2.",
        Apply.ENGINE,
        flag=False,
    ),
)

TRAFFIC = Setting(
    *("traffic", Kind("a version or a rule", lambda value, _: value, show=checks.show_traffic)),
    *(
        None,
        "How requests are divided among versions (docs/rollouts.md); default: all to the first.",
    ),
    Apply.IN_PLACE,
    flag=False,
)

PIPELINE = (
    Setting(
        *("name", checks.MODEL_NAME, None, "Name clients use; default: the file's."),
        Apply.ENGINE,
        flag=False,
    ),
    Setting(
        *("file", kinds.file("the path of a Python file"), None),
        "Python file with one async function `answer`.",
        Apply.ENGINE,
        flag=False,
    ),
    Setting(
        *("timeout", kinds.duration(), "300s", "How long one answer may take."),
        Apply.ENGINE,
        flag=False,
    ),
    Setting(
        *("memory", kinds.size(), "1GiB", "Memory its process may use."),
        Apply.ENGINE,
        flag=False,
    ),
    Setting(
        *("options", kinds.mapping("a table"), {}, "Values its code reads."),
        Apply.ENGINE,
        flag=False,
    ),
)

UPSTREAM = tuple(
    Setting(*(key, kind, None), help, Apply.IN_PLACE, flag=False)
    for key, kind, help in (
        (
            "targets",
            kinds.tables("a list of tables"),
            "Servers that answer what this one does not (docs/gateway.md); default: none.",
        ),
        (
            "routing",
            kinds.mapping("a table"),
            "Which target gets a request (docs/gateway.md#routing); default: as of a gateway.",
        ),
        (
            "privacy",
            kinds.mapping("a table"),
            "Requests that may not leave this server, or some machines "
            "(docs/gateway.md#privacy); default: those whose senders say so.",
        ),
        (
            "fallbacks",
            kinds.mapping("a table"),
            "Models that answer where a model can not, by its name; default: none.",
        ),
    )
)


def keyed(settings: Iterable[Setting]) -> dict[str, Setting]:
    """Settings by key."""
    return {setting.key: setting for setting in settings}
