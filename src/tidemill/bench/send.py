"""One request: sent, and read as a trace."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import msgspec

from tidemill.bench.client import Client, Clock, HttpFailure
from tidemill.bench.dialects import Dialect, Prompt, Sampling
from tidemill.bench.results import RequestTrace


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends prompts to one server.

    Attributes:
        timeout: seconds one request may take.
        max_seconds: seconds from the point's start in which every request must have ended.
    """

    client: Client
    dialect: Dialect
    sampling: Sampling
    clock: Clock
    timeout: float
    max_seconds: float

    async def send(
        self,
        prompt: Prompt,
        given: int,
        start: float,
        zero: float,
        keep_text: bool = False,
        model: str | None = None,
    ) -> RequestTrace:
        """Send a prompt; failures are in the trace.

        Args:
            given: input tokens, where the server does not count them.
            start: when it was due, relative to `zero`.
            keep_text: whether the trace has the answer's text.
            model: the name that it is sent to; None: that of the sampling.
        """
        trace = RequestTrace(start=start, sent=self.clock() - zero, input_tokens=given)
        left = self.max_seconds - trace.sent
        texts: list[str] = []
        sampling = self.sampling if model is None else replace(self.sampling, model=model)
        body = self.dialect.encode(prompt, sampling)
        try:
            async with asyncio.timeout(max(0.0, min(self.timeout, left))):
                stream = self.client.events(self.dialect.route, body, self.dialect.framing)
                async for when, events in stream:
                    for event in events:
                        if text := self.dialect.add(event, trace):
                            trace.arrivals.append(when - zero)
                            if keep_text:
                                texts.append(text)
        except TimeoutError:
            trace.error = "timeout" if self.timeout <= left else "end of the point's time"
        except HttpFailure as failure:
            trace.error = f"http {failure.status}" if failure.status != 200 else "error in stream"
            trace.detail = str(failure)
        except OSError as error:
            trace.error, trace.detail = type(error).__name__, str(error)
        except (ValueError, TypeError, AttributeError, KeyError, msgspec.MsgspecError) as error:
            trace.error, trace.detail = "malformed response", str(error)
        trace.end = self.clock() - zero
        if trace.error is None and trace.finish_reason is None:
            trace.error = "stream cut off"
        trace.output_tokens = trace.output_tokens or len(trace.arrivals)
        trace.text = "".join(texts)
        return trace
