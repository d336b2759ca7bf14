"""AdapterTable: the adapters of a model by the names that requests use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.contract.request import ADAPTER_NAME, ADAPTER_NAME_RULE, AdapterUse
from tidemill.contract.wire import AdapterInfo

MAX_ADAPTERS = 10_000
MAX_ADDED_UP = 16


@dataclass(frozen=True, slots=True)
class Registered:
    """An adapter under its name.

    Attributes:
        use: what a request with it carries.
        info: as it was verified.
        created: seconds since 1970 when it was registered.
    """

    use: AdapterUse
    info: AdapterInfo
    created: int = 0


def check_name(name: str) -> str:
    """Returns the name. Raises BAD_REQUEST for one that adapters cannot have."""
    if not ADAPTER_NAME.fullmatch(name):
        raise bad_request(
            "lora_name",
            f"an adapter cannot be called {name[:80]!r}: a name is {ADAPTER_NAME_RULE}",
        )
    return name


class AdapterTable:
    """See the module docstring."""

    def __init__(self) -> None:
        self._known: dict[str, Registered] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Registered]:
        return iter(list(self._known.values()))

    def get(self, name: str) -> Registered | None:
        """The adapter of a name."""
        return self._known.get(name)

    def put(
        self, name: str, path: str, info: AdapterInfo, *, pinned: bool = False, created: int = 0
    ) -> Registered | None:
        """Register a verified adapter; returns the one whose place it takes.

        Raises:
            TidemillError: BAD_REQUEST for an invalid name, OVERLOADED for too many adapters.
        """
        before = self._known.get(check_name(name))
        if before is None and len(self._known) >= MAX_ADAPTERS:
            raise TidemillError(
                ErrorKind.OVERLOADED,
                f"{MAX_ADAPTERS} adapters are registered already; unload one first",
            )
        use = AdapterUse(
            name,
            path,
            info.digest,
            nbytes=info.nbytes,
            pinned=pinned,
            invocation=tuple(info.invocation),
            virtual_tokens=info.virtual_tokens,
            prefix=info.prefix,
        )
        self._known[name] = Registered(use, info, created)
        return before

    def remove(self, name: str) -> Registered:
        """Forget a name. Raises NOT_FOUND."""
        if name not in self._known:
            raise self._unknown(name)
        return self._known.pop(name)

    def needs(self, digest: str) -> bool:
        """Whether an adapter is registered under some name."""
        return any(one.use.digest == digest for one in self._known.values())

    def uses(self, asked: str | Mapping[str, float] | None) -> tuple[AdapterUse, ...]:
        """What a request with one adapter, or several with their scales, carries. An adapter of
        scale 0 is left out.

        Raises:
            TidemillError: NOT_FOUND for an unknown name, BAD_REQUEST for a scale or too many.
        """
        if asked is None:
            return ()
        scales = {asked: 1.0} if isinstance(asked, str) else asked
        found = []
        for name in sorted(scales):
            if name not in self._known:
                raise self._unknown(name)
            scale = scales[name]
            if isinstance(scale, bool) or not isinstance(scale, int | float):
                raise bad_request("lora", f"the scale of {name!r} must be a number")
            if not -100 <= scale <= 100:
                raise bad_request("lora", f"the scale of {name!r} must be between -100 and 100")
            use = self._known[name].use
            if scale:
                if scale != 1.0:
                    use = msgspec.structs.replace(use, scale=float(scale), pinned=False)
                found.append(use)
        if len(found) > MAX_ADDED_UP:
            raise bad_request("lora", f"at most {MAX_ADDED_UP} adapters are added up")
        return tuple(found)

    def _unknown(self, name: str) -> TidemillError:
        known = ", ".join(sorted(self._known)[:8]) or "none"
        return TidemillError(
            ErrorKind.NOT_FOUND,
            f"no adapter is called {name[:80]!r}; loaded: {known}",
            param="adapter",
        )
