"""What runs in Ray's workers: one process of the deployment each, and the controller.

The classes know nothing of Ray but the address of their node; `ray_placement` makes actors of them.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tidemill.base.log import get_logger, set_up_logging
from tidemill.cluster.config import Deployment
from tidemill.cluster.placement import ProcessSpec
from tidemill.cluster.process import Process

log = get_logger(__name__)

LOOK_SECONDS = 20.0


class ProcessActor:
    """A server process on this node. It ends with the actor, however that ends.

    Args:
        spec: what runs.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        import ray

        set_up_logging("cluster", "info", "text")
        self._node = ray.get_runtime_context().get_node_id()
        self._process = Process(spec, ray.util.get_node_ip_address())
        self._process.start()

    def describe(self) -> dict[str, object]:
        """See `Process.describe`; and the node."""
        return {**self._process.describe(), "node": self._node}

    def write(self, files: dict[str, str]) -> None:
        """See `Process.write`."""
        self._process.write(files)

    def stop(self, seconds: float) -> None:
        """See `Process.stop`."""
        self._process.stop(seconds)


class ControllerActor:
    """The controller, in a thread of its own. Ray starts it again where it ends, with the same
    deployment.

    Args:
        deployment: what is wanted.
    """

    def __init__(self, deployment: Deployment) -> None:
        from tidemill.cluster.controller import Controller
        from tidemill.cluster.ray_placement import RayPlacement

        set_up_logging("cluster", "info", "text")
        self._deployment = deployment
        self._controller = Controller(deployment, RayPlacement(deployment.config.name))
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._controller.run())

    def status(self) -> dict[str, Any]:
        """See `Controller.status`; of a controller that has just begun, once it has looked."""
        self._controller.looked.wait(LOOK_SECONDS)
        return self._controller.status()

    def deployment(self) -> Deployment:
        """What is wanted."""
        return self._deployment
