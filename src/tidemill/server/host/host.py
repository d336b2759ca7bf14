"""The models of one server, by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.server.errors import reject
from tidemill.server.host.served import ServedModel


class ModelHost:
    """Resolves the `model` of a request.

    Attributes:
        models: the first answers requests that name none.
    """

    def __init__(self) -> None:
        self.models: list[ServedModel] = []

    def add(self, model: ServedModel) -> None:
        """Serve a model from now on."""
        self.models.append(model)

    @property
    def default(self) -> ServedModel:
        """The model of requests that name none."""
        return self.models[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of every model."""
        return tuple(name for model in self.models for name in model.names)

    def find(self, name: str | None) -> ServedModel:
        """The model of that name; the default one for an absent or empty name.

        Raises:
            Rejection: 404.
        """
        if not name:
            return self.default
        for model in self.models:
            if name in model.names:
                return model
        served = " or ".join(map(repr, self.names))
        raise reject(
            404,
            f"the model {name[:256]!r} does not exist; this server serves {served}",
            param="model",
            code="model_not_found",
        )

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[ServedModel]:
        """The model of that name, ready to answer until the lease ends; see `find`."""
        yield self.find(name)
