"""Settings that contradict each other, or the files they name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import TidemillError
from tidemill.base.sizes import exact_size
from tidemill.contract.config import ROLE_NEEDS
from tidemill.deployment.deployment import Deployment, ModelSettings

if TYPE_CHECKING:
    import ast

Found = Iterator[tuple[str, str, str]]

# Of a table of limits: what one request may have, and what all may have together.
_ONE_OF_ALL = (
    ("max_body_bytes", "max_bodies_bytes"),
    ("max_answer_bytes", "max_answers_bytes"),
    ("max_n", "max_active_choices"),
)
MAX_PIPELINE_BYTES = 2**20


def conflicts(deployment: Deployment, wrong: Collection[str] = ()) -> Found:
    """Section's label, key and message of each contradiction.

    Args:
        deployment: in which wrong values were replaced by defaults.
        wrong: tables with wrong values; nothing is said that could follow from the replacement.
    """
    yield from _names(deployment)
    yield from _pins(deployment)
    yield from _models(deployment)
    if not {"models", "defaults", "flags"} & {*wrong}:
        yield from _roles(deployment)
    if not {"limits", "flags"} & {*wrong}:
        yield from _limits(deployment)
    if not {"security", "server", "flags"} & {*wrong}:
        yield from _security(deployment)
    for section in deployment.sections:
        if section.table == "pipelines":
            message = pipeline_problem(Path(section.values["file"].value))
            if message:
                yield section.label, "file", message


def _names(deployment: Deployment) -> Found:
    taken: dict[str, str] = {}
    for section in deployment.sections:
        if not section.name:
            continue
        named = [("name", section.name)]
        if "aliases" in section.values:
            named += [("aliases", alias) for alias in section.values["aliases"].value]
        for key, name in named:
            if name in taken:
                yield section.label, key, f"{name!r} is a name of {taken[name]} too; rename one"
            else:
                origin = section.values[key].origin
                taken[name] = f"{section.label} ({origin})"


def _pins(deployment: Deployment) -> Found:
    memory = deployment.server.memory
    pinned = [model for model in deployment.models if model.pin]
    if memory is not None:
        least = sum(model.engine["kv_memory"] or 0 for model in pinned)
        if least > memory:
            yield (
                *("server", "memory"),
                f"is {exact_size(memory)}, and the KV caches of the pinned models alone need "
                f"{exact_size(least)}; raise it, lower their kv_memory, or unpin one",
            )


def memory_check(
    least_bytes: Callable[[ModelSettings], int | None], available: int | None = None
) -> Callable[[Deployment], Found]:
    """A check that every model fits, and that the pinned ones fit together.

    Args:
        least_bytes: what a model needs at least; None: not known, such as of a model that is not
            on this machine.
        available: bytes that models may use where the deployment says nothing; None: not checked.
    """

    def check(deployment: Deployment) -> Found:
        memory = deployment.server.memory or available
        if memory is None:
            return
        labels = {s.name: s.label for s in deployment.sections if "source" in s.values}
        pinned = []
        for model in deployment.models:
            needed = least_bytes(model)
            if needed is not None and needed > memory:
                message = (
                    f"needs at least {_human(needed)}, and models may use {_human(memory)}; take a "
                    "smaller one or a smaller context (max_model_len, kv_memory), or raise memory"
                )
                yield labels[model.name], "source", message
            elif needed is not None and model.pin:
                pinned.append((model.name, needed))
        total = sum(needed for _, needed in pinned)
        if total > memory:
            each = ", ".join(f"{name} {_human(needed)}" for name, needed in pinned)
            yield (
                *("server", "memory"),
                f"pinned models need {_human(total)} together ({each}), and models may use "
                f"{_human(memory)}; raise memory, or unpin one",
            )

    return check


def _human(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _models(deployment: Deployment) -> Found:
    for section in deployment.sections:
        if section.table != "models" or "source" not in section.values:
            continue
        values = section.values
        local = Path(values["source"].value).is_absolute()
        if values["revision"].value is not None and local:
            yield section.label, "revision", "belongs to a model on the hub, and source is a path"
        if values["file"].value is not None and local and Path(values["source"].value).is_file():
            yield section.label, "file", "belongs to a folder or a hub name, and source is a file"
        least, most = (values[f"sampling.{key}"].value for key in ("min_tokens", "max_tokens"))
        if least is not None and most is not None and least > most:
            message = f"is {least}, more than max_tokens ({most})"
            yield section.label, "sampling.min_tokens", message
        keep_alive = values["keep_alive"]
        if values["pin"].value and keep_alive.value == 0:
            yield section.label, "keep_alive", "is 0, and the model is pinned; leave one out"


def _roles(deployment: Deployment) -> Found:
    for section in deployment.sections:
        if section.table == "models" and "source" in section.values:
            role = section.values["role"].value
            needed = ROLE_NEEDS.get(role)
            if needed is not None and section.values[needed].value is None:
                yield section.label, "role", f"{role} needs {needed}: see docs/kv-transfer.md"


def _limits(deployment: Deployment) -> Found:
    [values] = (section.values for section in deployment.sections if section.table == "limits")
    for one, together in _ONE_OF_ALL:
        single, total = (getattr(deployment.limits, key) for key in (one, together))
        if single > total:
            message = f"{one} ({single}) is more than {together} ({total}) allows for all requests"
            yield "limits", one if values[one].origin.source != "default" else together, message


def _security(deployment: Deployment) -> Found:
    from tidemill.store.location import location_of

    server = deployment.server
    # Whether a database has keys is asked by who starts the server, which knows its home.
    unread = location_of(server.database, Path()) is not None
    try:
        deployment.security.open(server.host, lambda line: None, unread=unread)
    except TidemillError as error:
        key = (error.param or "").replace("-", "_")
        if key == "host":
            yield "server", "host", error.message
        else:
            yield "security", key, error.message


def pipeline_problem(path: Path) -> str | None:
    """What is wrong with a pipeline's file, which is parsed and not run; None if nothing."""
    import ast

    from tidemill.base.files import open_regular

    try:
        with open_regular(path) as file:
            source = file.read(MAX_PIPELINE_BYTES + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if len(source) > MAX_PIPELINE_BYTES:
        return f"is larger than {MAX_PIPELINE_BYTES} bytes"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
        return f"{path} is not valid Python{where}"
    if not any(_binds_answer(node) for node in ast.walk(tree)):
        return f"{path} has no `async def answer(request, models)`"
    return None


def _binds_answer(node: ast.AST) -> bool:
    """A definition, an import or an assignment of ``answer``; what it is shows when it is run."""
    import ast

    if isinstance(node, ast.ImportFrom | ast.Import):
        return any((one.asname or one.name) in ("answer", "*") for one in node.names)
    if isinstance(node, ast.Name):
        return node.id == "answer" and isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.AsyncFunctionDef) and node.name == "answer"
