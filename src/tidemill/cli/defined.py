"""Models by name, with what the library's definition adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemill.contract.sampling import SamplingParams
    from tidemill.library.locate import Located
    from tidemill.library.manifest import Definition
    from tidemill.llm import LLM
    from tidemill.offline.opened_text import OpenedText


def located(model: str | Path | None, say: Callable[[str], None] | None = None) -> Located:
    """A model that a command is to run: `library.locate.locate`, if all of it can be applied."""
    from tidemill.library.locate import check_runnable, locate

    return check_runnable(locate(model, say))


def files_of(model: str | None) -> str | None:
    """The path of a model of the library; any other name, or None, unchanged."""
    from tidemill.library.home import default_home, has_models

    if model is None or not has_models(default_home()):
        return model
    from tidemill.library.catalog import Library
    from tidemill.library.locate import locate

    return str(locate(model).path) if Library.open().find(model) is not None else model


def defined_text(opened: OpenedText, definition: Definition) -> OpenedText:
    """A model's text side with its definition's sampling values and chat template.

    Raises:
        TidemillError: the template is not valid.
    """
    from dataclasses import replace

    from tidemill.contract.sampling import NEUTRAL
    from tidemill.text.template import ChatTemplate

    own = {name: value for name, value in definition.sampling.items() if name in NEUTRAL}
    opened = replace(opened, defaults={**opened.defaults, **own})
    if definition.chat_template is None:
        return opened
    template = ChatTemplate(definition.chat_template, opened.tokenizer.special)
    return replace(opened, template=template)


def check_servable(located: Located) -> Located:
    """The model, if a server applies all that its definition says.

    Raises:
        TidemillError: UNSUPPORTED, naming what a server does not apply yet.
    """
    from tidemill.base.errors import unsupported
    from tidemill.contract.sampling import NEUTRAL

    defined = located.definition
    others = [name for name in defined.sampling if name not in NEUTRAL]
    for name, there in (
        ("system", defined.system),
        ("messages", defined.messages),
        *((other, True) for other in others),
    ):
        if there:
            raise unsupported(
                name,
                f"{located.name} was created with a value of {name!r}, which `tidemill run` "
                f"applies and a server does not yet; serve {located.path}, and send it with each "
                "request",
            )
    return located


def apply_definition(llm: LLM, definition: Definition) -> None:
    """Give a loaded model its definition's sampling values and chat template.

    Raises:
        TidemillError: the template is not valid.
    """
    from tidemill.contract.sampling import NEUTRAL
    from tidemill.grammar.schema import prepared
    from tidemill.text.answering import ChatSide
    from tidemill.text.template import ChatTemplate

    own = {name: value for name, value in definition.sampling.items() if name in NEUTRAL}
    llm.defaults = {**llm.defaults, **own}
    if definition.chat_template is not None:
        llm.template = ChatTemplate(definition.chat_template, llm.tokenizer.special)
        llm.chat_side = ChatSide.of(llm.tokenizer, llm.template, prepared)


def with_defaults(params: SamplingParams, definition: Definition) -> SamplingParams:
    """Sampling parameters with the definition's values where they say nothing."""
    from msgspec.structs import asdict

    neutral = asdict(type(params)())
    given = {name: value for name, value in asdict(params).items() if value != neutral[name]}
    return type(params)(**{**definition.sampling, **given})
