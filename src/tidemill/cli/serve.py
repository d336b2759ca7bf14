"""`tidemill serve`: models over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tidemill.cli import locks, options
from tidemill.cli.declared import argument, global_variables, option


@global_variables
def serve(
    model: tuple[str, ...] = argument(
        (),
        help="Models by name, folder or file (see `tidemill run --help`). Default: the bundled "
        "one, and the whole library on demand.",
        envvar="TIDEMILL_MODEL",
        complete=options.complete_models,
    ),
    config: Path | None = option(
        None, help="Deployment file (docs/deployment.md); flags count before it."
    ),
    pin: tuple[str, ...] = option(
        (),
        help="Load this model at the start and never unload it for another; repeatable.",
    ),
    adapter: tuple[str, ...] = option(
        (),
        help="Adapter (LoRA) of the first model as NAME=PATH, of another as MODEL:NAME=PATH: a "
        "PEFT folder, a GGUF file or a name of the library; requests name it as their model "
        "(docs/adapters.md); repeatable.",
    ),
    adapter_folder: str | None = option(
        None,
        help="A folder of adapters of the first model: each is named as its subfolder, or its GGUF "
        "file; it is looked at every two seconds (docs/adapters.md).",
        envvar="TIDEMILL_ADAPTER_FOLDER",
    ),
    file: str | None = options.FILE,
    revision: str | None = options.REVISION,
    host: str = options.SERVER["host"],
    port: int = options.SERVER["port"],
    grpc_port: int | None = options.SERVER["grpc_port"],
    served_name: tuple[str, ...] = option(
        (),
        "--served-name",
        "--served-model-name",
        help="Name clients use, the first one in answers; repeatable. Default: the model's.",
    ),
    backend: str = options.BACKEND,
    device: str = options.DEVICE,
    dtype: str = options.DTYPE,
    quantize: str = options.QUANTIZE,
    kv_dtype: str = options.KV_DTYPE,
    block_size: int = options.BLOCK_SIZE,
    max_model_len: int | None = options.MAX_MODEL_LEN,
    max_num_seqs: int = options.MAX_NUM_SEQS,
    max_step_tokens: int = options.MAX_STEP_TOKENS,
    kv_memory: str | None = options.KV_MEMORY,
    kv_ram: str | None = options.KV_RAM,
    kv_disk: str | None = options.KV_DISK,
    kv_listen: str | None = options.KV_LISTEN,
    kv_peers: str | None = options.KV_PEERS,
    role: str = options.ROLE,
    adapter_memory: str | None = options.ADAPTER_MEMORY,
    threads: int | None = options.THREADS,
    tensor_parallel: int = options.TENSOR_PARALLEL,
    pipeline_parallel: int = options.PIPELINE_PARALLEL,
    pipeline_peers: str | None = options.PIPELINE_PEERS,
    prefix_caching: bool = options.PREFIX_CACHING,
    isa: str | None = options.ISA,
    packed_cache: str = options.PACKED_CACHE,
    chat_template: str | None = options.CHAT_TEMPLATE,
    tool_format: str = options.TOOL_FORMAT,
    reasoning_format: str = options.REASONING_FORMAT,
    max_itl_ms: float | None = options.MAX_ITL_MS,
    speculate: str = options.SPECULATE,
    lookup_answers: int | None = options.LOOKUP_ANSWERS,
    ttft_objective_ms: float | None = options.ADMISSION["ttft_objective_ms"],
    max_queue_tokens: int | None = options.ADMISSION["max_queue_tokens"],
    max_queue_time: float | None = options.ADMISSION["max_queue_time"],
    memory: str | None = options.SERVER["memory"],
    keep_alive: str | None = options.SERVER["keep_alive"],
    stall_timeout: float = options.SERVER["stall_timeout"],
    drain_timeout: float = options.SERVER["drain_timeout"],
    page: str = options.SERVER["page"],
    resumable_streams: bool = options.SERVER["resumable_streams"],
    database: str | None = options.SERVER["database"],
    database_outage: str = options.SERVER["database_outage"],
    content: str = options.SERVER["content"],
    recent_requests: int = options.SERVER["recent_requests"],
    keep_explanations: str = options.SERVER["keep_explanations"],
    metrics_aliases: str = options.SERVER["metrics_aliases"],
    otel: str = options.SERVER["otel"],
    otel_protocol: str | None = options.SERVER["otel_protocol"],
    otel_sample: float | None = options.SERVER["otel_sample"],
    otel_steps: bool = options.SERVER["otel_steps"],
    energy: str = options.SERVER["energy"],
    carbon_intensity: str | None = options.SERVER["carbon_intensity"],
    api_key: tuple[str, ...] = locks.API_KEY,
    api_keys: Path | None = locks.API_KEYS,
    require_keys: bool = locks.REQUIRE_KEYS,
    region: str | None = locks.REGION,
    share_prefix_cache: bool = locks.SHARE_PREFIX_CACHE,
    tls_cert: Path | None = locks.TLS_CERT,
    tls_key: Path | None = locks.TLS_KEY,
    tls_client_ca: Path | None = locks.TLS_CLIENT_CA,
    cors_origin: tuple[str, ...] = locks.CORS_ORIGIN,
    allowed_host: tuple[str, ...] = locks.ALLOWED_HOST,
    trusted_proxy: tuple[str, ...] = locks.TRUSTED_PROXY,
    insecure: bool = locks.INSECURE,
    limit: tuple[str, ...] = locks.LIMIT,
    log_level: str = options.SERVER["log_level"],
    log_format: str = options.SERVER["log_format"],
) -> None:
    """Serve models through the OpenAI API, on 127.0.0.1:8000.

    The first model is loaded before the server is ready; the others are loaded when a request
    names them, and unloaded when their memory is needed for another.
    """
    import dataclasses
    import os

    from tidemill.base.log import log_line, set_up_logging
    from tidemill.base.stderr import guard_stderr
    from tidemill.cli.deployments import deployment_inputs
    from tidemill.cli.environment import unknown_variables, variables_of
    from tidemill.cli.main import COMMANDS
    from tidemill.cli.serving import check_grpc, named_models, say_line, serve_options
    from tidemill.cli.source import DeployedModels
    from tidemill.deployment.security import KEY_VARIABLE
    from tidemill.server.run import serve as run_server
    from tidemill.server.transport.listen import bind
    from tidemill.server.transport.systemd import ServiceManager
    from tidemill.store.location import DATABASE_VARIABLE

    guard_stderr(log_line)
    set_up_logging("api", log_level, log_format)
    alone = bool(served_name or file or revision)
    whole = not (model or config or alone)
    context = click.get_current_context()
    manager = ServiceManager.of(os.environ)
    for line in unknown_variables(
        os.environ, (name for name, _ in variables_of(context.command)), COMMANDS
    ):
        say_line(line)
    named = named_models(model, config, alone=alone, say=say_line)
    inputs = deployment_inputs(context, config, named, listener=manager.listener)
    deployment = inputs.resolve()
    if not deployment.models:  # a file that names none
        whole = True
        named = named_models((), None, alone=False, say=say_line)
        inputs = deployment_inputs(context, config, named, listener=manager.listener)
        deployment = inputs.resolve()
    server = deployment.server
    set_up_logging("api", server.log_level, server.log_format)
    # Child processes, the engine included, must not inherit the key.
    os.environ.pop(KEY_VARIABLE, None)
    if "://" in os.environ.get(DATABASE_VARIABLE, ""):  # nor the database's password
        del os.environ[DATABASE_VARIABLE]
    source = DeployedModels(inputs, deployment, whole=whole, say=say_line)
    found = serve_options(deployment, say_line, source, adapter, adapter_folder)
    found = dataclasses.replace(found, manager=manager)
    # After the cheap checks and before loading: a port in use must fail at once.
    listener = manager.listener or bind(server.host, server.port)
    if server.grpc_port is not None:
        check_grpc(server.host, server.grpc_port)
    code = run_server(found, listener, say=say_line)
    if code:
        sys.exit(code)
