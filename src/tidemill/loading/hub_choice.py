"""Selects the files of a hub repository that make up the requested model."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemill.base.errors import ErrorKind, TidemillError, model_file_error
from tidemill.loading.hub_name import HubName

# The only files downloaded for a folder: no pickles, no code.
FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "*.tiktoken",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
# The files of an adapter (PEFT's); what else its folder has is its base's.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
# Files in subfolders: named templates, and the modules of sentence-transformers.
INNER_FILES = re.compile(
    r"additional_chat_templates/[^/]+\.jinja|\d+_\w+/(config\.json|model\.safetensors)"
)
_SPLIT = re.compile(r"(.*)-\d{5}-of-\d{5}(\.gguf)")
_LABEL = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_\w+)?|TQ\d_\d|MXFP4(?:_\w+)?|NVFP4|BF16|F(?:P)?(?:16|32)))"
    r"(?=$|[-._/])",
    re.IGNORECASE,
)
# Without a named quantization: the most common one, then the next closest.
_USUAL = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0")


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to download.

    Attributes:
        files: paths in the repository.
        entry: the GGUF file to open, the first of several parts; None for a folder.
        note: a line for the user about an automatic choice.
    """

    files: tuple[str, ...]
    entry: str | None = None
    note: str | None = None


def choose(name: HubName, files: Sequence[str]) -> Choice:
    """The files that `name` refers to, of those in its repository.

    Raises:
        TidemillError: NOT_FOUND naming the available alternatives; MODEL_FILE when the repository
            holds no readable model.
    """
    models = gguf_models(files)
    if name.file is not None:
        return _by_file(name, models)
    if name.tag is not None and name.tag.lower() != "latest":
        return _by_tag(name, models)
    folder = _folder(files)
    if folder is not None:
        return Choice(folder)
    if not models:
        raise model_file_error(f"{name.repo}: the repository holds {_instead(name, files)}")
    return _usual(name, models)


def choose_any(name: HubName, files: Sequence[str]) -> Choice:
    """As `choose`; also the files of an adapter, where a repository holds one and no model."""
    plain = name.file is None and name.tag in (None, "latest")
    if plain and is_adapter(files) and _folder(files) is None and not gguf_models(files):
        return Choice(ADAPTER_FILES)
    return choose(name, files)


def is_adapter(files: Collection[str]) -> bool:
    """Whether these names are those of an adapter's folder, maybe among others."""
    return set(ADAPTER_FILES) <= set(files)


def is_folder_file(path: str) -> bool:
    """Whether a path in a repository is a file of a model's folder."""
    if "/" in path:
        return INNER_FILES.fullmatch(path) is not None
    return any(fnmatchcase(path, pattern) for pattern in FOLDER_FILES)


def gguf_models(files: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """First part -> all parts of each GGUF model. Image projectors and importance matrices are
    excluded."""
    found: dict[str, list[str]] = {}
    for file in sorted(files, key=lambda file: (file.count("/"), file)):
        base = file.rpartition("/")[2].lower()
        if base.endswith(".gguf") and "mmproj" not in base and "imatrix" not in base:
            found.setdefault(_SPLIT.sub(r"\1\2", file), []).append(file)
    return {parts[0]: tuple(parts) for parts in found.values()}


def _folder(files: Sequence[str]) -> tuple[str, ...] | None:
    """The files of a safetensors folder; None without safetensors."""
    top = [f for f in files if "/" not in f and is_folder_file(f) and f not in ADAPTER_FILES]
    weights = [f for f in top if f.endswith(".safetensors")]
    if "config.json" not in top or not weights:
        return None
    if "model.safetensors" in weights:
        spare = set(weights) - {"model.safetensors"}
    else:  # the same weights in the format of their author's own code
        spare = {f for f in weights if f.startswith("consolidated")}
        spare = spare if spare != set(weights) else set()
    inner = [f for f in files if "/" in f and is_folder_file(f)]
    return tuple(f for f in (*top, *inner) if f not in spare)


def _by_file(name: HubName, models: dict[str, tuple[str, ...]]) -> Choice:
    wanted = str(name.file)
    parts = next((parts for parts in models.values() if wanted in parts), None)
    if parts is not None:
        return Choice(parts, parts[0])
    inside = {
        first: parts
        for first, parts in models.items()
        if first.startswith(wanted + "/") or first.rpartition("/")[2] == wanted
    }
    if len(inside) != 1:
        wrong = "several files there" if inside else f"no file {wanted!r}"
        raise _not_found(name, f"{wrong}; its GGUF files are {_listed(inside or models)}")
    ((first, parts),) = inside.items()
    return Choice(parts, first)


def _by_tag(name: HubName, models: dict[str, tuple[str, ...]]) -> Choice:
    wanted = str(name.tag).upper()
    by_label: dict[str, list[str]] = {}
    for first in models:
        by_label.setdefault(label(first) or first, []).append(first)
    for label_of in (wanted, f"UD-{wanted}", f"{wanted}_M"):
        found = by_label.get(label_of, [])
        if len(found) == 1:
            return Choice(models[found[0]], found[0])
        if found:
            raise _not_found(
                name, f"several files are {label_of}: name one with --file: {_listed(found)}"
            )
    raise _not_found(name, f"no GGUF file of type {name.tag}; there are {_listed(by_label)}")


def _usual(name: HubName, models: dict[str, tuple[str, ...]]) -> Choice:
    first = next((f for kind in _USUAL for f in models if label(f) == kind), next(iter(models)))
    if len(models) == 1:
        return Choice(models[first], first)
    labels = list(dict.fromkeys(label(f) or f for f in models))
    note = (
        f"{name.repo} has {len(models)} GGUF files: {label(first) or first} is taken; name another "
        f"as {name.repo}:TYPE ({_listed(labels)})"
    )
    return Choice(models[first], first, note)


def label(file: str) -> str | None:
    """The quantization in a GGUF file's name, else in its folder's name, in the usual notation."""
    stem = _SPLIT.sub(r"\1\2", file).removesuffix(".gguf")
    found = _LABEL.findall(stem.rpartition("/")[2]) or _LABEL.findall(stem)
    return re.sub("^FP", "F", str(found[-1]).upper()) if found else None


def _instead(name: HubName, files: Sequence[str]) -> str:
    if is_adapter(files):
        return (
            f"an adapter, which changes a model: `tidemill pull {name.repo}`, then serve its base "
            f"with --adapter NAME={name.repo}"
        )
    if any(f.endswith((".bin", ".pth", ".pt")) for f in files):
        return (
            "PyTorch's files alone, which are not fetched; download them and give the folder, "
            "or name a repository of safetensors or GGUF files"
        )
    if any(f.endswith(".safetensors") for f in files):
        return "safetensors without a config.json: parts of a model, or of another kind of one"
    return "neither safetensors with a config.json nor GGUF files"


def _not_found(name: HubName, what: str) -> TidemillError:
    return TidemillError(ErrorKind.NOT_FOUND, f"{name.repo}: {what}", param="model")


def _listed(names: Sequence[str] | dict[str, tuple[str, ...]] | dict[str, list[str]]) -> str:
    shown = list(names)[:16]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if names else "none"
