"""Settings of admission control."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.base.errors import config_error

MAX_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Bounds of the queue, in tokens and in time.

    Attributes:
        max_queue_tokens: bound of the queue in tokens; None: derived from cache and rate.
        max_queue_time: seconds a request may wait for its first step; None: no limit.
        ttft_objective: seconds to the first token; later requests are rejected. None: off.
    """

    max_queue_tokens: int | None = None
    max_queue_time: float | None = None
    ttft_objective: float | None = None

    @classmethod
    def of(
        cls,
        *,
        max_queue_tokens: int | None,
        max_queue_time: float | None,
        ttft_objective_ms: float | None,
    ) -> AdmissionOptions:
        """The options of `tidemill serve`, checked.

        Raises:
            TidemillError: kind CONFIG naming the flag.
        """
        if max_queue_tokens is not None and max_queue_tokens < 0:
            raise config_error(
                "max-queue-tokens", f"--max-queue-tokens is at least 0, not {max_queue_tokens}"
            )
        seconds = None if ttft_objective_ms is None else ttft_objective_ms / 1000
        for flag, value, unit in (
            ("max-queue-time", max_queue_time, "seconds"),
            ("ttft-objective-ms", seconds, "ms"),
        ):
            if value is not None and not 0.0 < value <= MAX_SECONDS:
                most = MAX_SECONDS * (1000 if unit == "ms" else 1)
                raise config_error(flag, f"--{flag} is above 0 and at most {most:.0f} {unit}")
        return cls(max_queue_tokens, max_queue_time, seconds)
