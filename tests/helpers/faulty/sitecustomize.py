"""Makes an engine process fail on demand; see `helpers.faults`. Only tests put it on the path."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any


class FaultyHandle:
    """A handle whose result is the fault."""

    def __init__(self, handle: Any, kind: str) -> None:
        self._handle = handle
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def result(self) -> Any:
        if self._kind == "abort":
            os.abort()
        if self._kind == "hang":
            threading.Event().wait()
        self._handle.result()
        if self._kind == "memory":
            raise MemoryError("an injected lack of memory")
        raise RuntimeError("an injected failure of the step")


class Faults:
    """Which sequences are cursed, and how."""

    def __init__(self, faults: dict[str, int]) -> None:
        self._faults = faults
        self._cursed: dict[int, str] = {}
        self.untellable: set[str] = set()

    @property
    def kinds(self) -> set[str]:
        """Kinds of faults there are."""
        return set(self._faults)

    def token(self, kind: str) -> int:
        """The token that causes a fault."""
        return self._faults[kind]

    def of(self, plan: Any) -> str | None:
        """The fault of a plan, if one of its rows has one."""
        for new in plan.new:
            for kind, token in self._faults.items():
                if token in new.token_ids[: new.prompt_len]:
                    if kind == "message":
                        self.untellable.add(new.request_id)
                    else:
                        self._cursed[new.seq_id] = kind
        kinds = [self._cursed[r.seq_id] for r in plan.rows if r.seq_id in self._cursed]
        for kind in kinds:
            if kind != "memory" or len(plan.rows) > 1 or plan.num_tokens > 8:
                return kind
        return None


def install() -> None:
    """Wrap the executor's submit."""
    from tidemill.executor.inproc import InprocExecutor

    faults = Faults(json.loads(os.environ["TIDEMILL_TEST_FAULTS"]))
    submit = InprocExecutor.submit

    def faulty_submit(self: InprocExecutor, plan: Any) -> Any:
        kind = faults.of(plan)
        if kind == "submit":
            raise RuntimeError("an injected refusal of the plan")
        handle = submit(self, plan)
        return handle if kind is None else FaultyHandle(handle, kind)

    InprocExecutor.submit = faulty_submit  # type: ignore[method-assign]
    if "message" in faults.kinds:
        _install_message_fault(faults)
    if "receive" in faults.kinds:
        _install_receive_fault(faults.token("receive"))
    if "compile" in faults.kinds:
        _install_compile_fault()


def _install_message_fault(faults: Faults) -> None:
    from tidemill.engine.core import EngineCore

    send = EngineCore._send

    def faulty_send(self: EngineCore, client: int, message: Any) -> None:
        if any(o.request_id in faults.untellable for o in getattr(message, "outputs", ())):
            os._exit(4)
        send(self, client, message)

    EngineCore._send = faulty_send  # type: ignore[method-assign]


def _install_receive_fault(token: int) -> None:
    from tidemill.engine.core import EngineCore

    submit = EngineCore.submit

    def faulty_submit(self: EngineCore, client: int, request: Any, **how: Any) -> None:
        if token in request.prompt_token_ids:
            os._exit(4)
        submit(self, client, request, **how)

    EngineCore.submit = faulty_submit  # type: ignore[method-assign]


def _install_compile_fault() -> None:
    from tidemill.grammar.service import GrammarService

    compile_program = GrammarService.compile

    def faulty_compile(self: GrammarService, program: Any, *args: Any) -> Any:
        if "poison" in str(program):
            os.abort()
        return compile_program(self, program, *args)

    GrammarService.compile = faulty_compile  # type: ignore[method-assign]


def install_in_sandbox() -> None:
    """Fail at grammars as their text says, in the way of native code."""
    from tidemill.grammar import sandbox_limits

    sandbox_limits.CPU_SECONDS = 0.2
    from tidemill.grammar.trial import Trial

    attempt = Trial.attempt

    def faulty_attempt(self: Trial, grammar: Any) -> Any:
        if "poison-segv" in grammar.source:
            signal.raise_signal(signal.SIGSEGV)
        while "poison-cpu" in grammar.source:
            pass
        if "poison-memory" in grammar.source:
            allocate = ctypes.CDLL(None).malloc
            allocate.restype = ctypes.c_void_p
            while allocate(2**24):
                pass
            os.abort()
        return attempt(self, grammar)

    Trial.attempt = faulty_attempt  # type: ignore[method-assign]


_faults = json.loads(os.environ.get("TIDEMILL_TEST_FAULTS", "{}"))
if _faults and "tidemill.engine.process" in sys.orig_argv:
    install()
if "sandbox" in _faults and "tidemill.grammar.sandbox_process" in sys.orig_argv:
    install_in_sandbox()
