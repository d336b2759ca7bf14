"""A worker thread that serves tenants' jobs round-robin."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

Job = Callable[[], None]


class Lane:
    """One thread with a queue per tenant; tenants are served round-robin, each in FIFO order.

    The thread starts with the first job and sleeps when idle.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()

    def submit(self, tenant: str, job: Job) -> None:
        """Queue a job. It must not raise.

        Raises:
            RuntimeError: after `close`.
        """
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append(job)
        self._pool.submit(self._run_next)

    def close(self, *, wait: bool = False) -> None:
        """Stop the thread; queued jobs are dropped, or with `wait` completed first."""
        self._pool.shutdown(wait=wait, cancel_futures=not wait)

    def _run_next(self) -> None:
        with self._lock:
            tenant, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[tenant] = jobs
        job()
