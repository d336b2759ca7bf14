"""The bounds that all models of a server share."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.contract.wire import EngineInfo
from tidemill.metrics.admission import AdmissionMetrics
from tidemill.server.admission.control import Admission, too_many_choices
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.admission.shares import Shares


class SharedBounds:
    """What requests to any model hold together.

    Args:
        max_choices: bound on choices in flight.
        max_answers: bound on bytes of buffered answers.
        metrics: of admission control.

    Attributes:
        choices, answers: held now.
    """

    def __init__(self, max_choices: int, max_answers: int, metrics: AdmissionMetrics) -> None:
        self.choices = Shares(max_choices)
        self.answers = Shares(max_answers)
        self._metrics = metrics

    def admission(
        self, model: str, options: AdmissionOptions, info: Callable[[], EngineInfo]
    ) -> Admission:
        """Admission control of one model."""
        metrics = self._metrics.of(model)
        return Admission(options, info, metrics, choices=self.choices, answers=self.answers)

    def check_choices(self, choices: int) -> None:
        """Raise a 400 when one request has more choices than the bound.

        `Admission.admit` does so too; an earlier call avoids work for a request that will be
        rejected.
        """
        if choices > self.choices.bound:
            raise too_many_choices(choices, self.choices.bound)
