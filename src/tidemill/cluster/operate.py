"""What `tidemill cluster` does, once it is connected to Ray."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.base.log import get_logger
from tidemill.cluster.config import ClusterConfig, Deployment, from_environment

log = get_logger(__name__)

ANSWER_SECONDS = 30.0
"""That the controller has to answer, its own start included."""

POLL_SECONDS = 1.0

Say = Callable[[str], None]


def connect(address: str) -> None:
    """Connect this process to Ray.

    Args:
        address: of its head; empty: RAY_ADDRESS, or the cluster that this machine belongs to.

    Raises:
        TidemillError: CONFIG without the extra; UNAVAILABLE without a cluster.
    """
    try:
        import ray
    except ImportError:
        raise config_error(
            "ray", "`tidemill cluster` needs Ray: pip install 'tidemill[ray]', on every node"
        ) from None
    from tidemill.cluster.ray_placement import NAMESPACE

    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError) as error:
        raise TidemillError(
            ErrorKind.UNAVAILABLE,
            f"no Ray cluster answers ({str(error).splitlines()[0]}); begin one with "
            "`ray start --head`, or say where it is: `address` in the file, or RAY_ADDRESS",
        ) from None


class Operator:
    """Changes a deployment. Ray is connected.

    Args:
        name: of the deployment.
    """

    def __init__(self, name: str) -> None:
        from tidemill.cluster.ray_placement import controller_name

        self._name = name
        self._controller = controller_name(name)

    def deployed(self) -> Deployment | None:
        """What is wanted there; None: nothing."""
        found = self._find()
        return None if found is None else self._get(found.deployment.remote())

    def deploy(self, config: ClusterConfig) -> Deployment:
        """Have a controller bring this about; an earlier one ends, and what it started stays.

        Raises:
            TidemillError: CONFIG; a variable that is to be passed on is not set.
        """
        before = self.deployed()
        key = secrets.token_urlsafe(24) if before is None else before.engine_key
        made = from_environment(config, key)
        self._replace(made)
        return made

    def scale(self, pool: str, least: int, most: int) -> None:
        """Give a pool other bounds, until the next deployment.

        Raises:
            TidemillError: NOT_FOUND: nothing is deployed; CONFIG: there is no such pool.
        """
        import msgspec

        before = self._required()
        config = before.config.scaled(pool, least, most)
        self._replace(msgspec.structs.replace(before, config=config))

    def status(self) -> dict[str, Any]:
        """See `Controller.status`. Raises NOT_FOUND: nothing is deployed."""
        found = self._find()
        if found is None:
            raise self._nothing()
        status: dict[str, Any] = self._get(found.status.remote())
        return status

    def down(self, seconds: float, say: Say) -> int:
        """End everything: gateways first, which finish their requests.

        Args:
            seconds: that each may take.
            say: called with each line of progress.

        Returns:
            How many processes there were.
        """
        import asyncio

        import ray

        from tidemill.cluster.placement import GATEWAY
        from tidemill.cluster.ray_placement import RayPlacement

        found = self._find()
        if found is not None:
            ray.kill(found)
        placement = RayPlacement(self._name)

        async def stop() -> int:
            processes = await placement.processes()
            for gateways in (True, False):
                some = [one for one in processes if (one.kind == GATEWAY) is gateways]
                await asyncio.gather(*(placement.stop(one.name, seconds) for one in some))
                for one in some:
                    say(f"{one.name} has ended")
            return len(processes)

        return asyncio.run(stop())

    def wait(self, seconds: float, say: Say) -> bool:
        """Wait until there are as many engines as there are to be at least, and all gateways.

        Args:
            seconds: at most.
            say: called with each change.

        Returns:
            It came about.
        """
        ends, last = monotonic() + seconds, ""
        while True:
            status = self.status()
            line, done = progress(status)
            if line != last:
                say(line)
                last = line
            if done or monotonic() >= ends:
                return done
            time.sleep(POLL_SECONDS)

    # -- the controller --------------------------------------------------------------------------

    def _find(self) -> Any:
        import ray

        try:
            return ray.get_actor(self._controller)
        except ValueError:
            return None

    def _replace(self, deployment: Deployment) -> None:
        import ray

        from tidemill.cluster.actors import ControllerActor

        found = self._find()
        if found is not None:
            ray.kill(found)
        ends = monotonic() + ANSWER_SECONDS
        while self._find() is not None and monotonic() < ends:
            time.sleep(0.1)
        handle = (
            ray.remote(ControllerActor)
            .options(
                name=self._controller,
                lifetime="detached",
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=8,
                num_cpus=0,
            )
            .remote(deployment)
        )
        self._get(handle.status.remote())

    def _get(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            raise TidemillError(
                ErrorKind.UNAVAILABLE,
                f"the controller of {self._name!r} does not answer: "
                f"{str(error).strip().splitlines()[-1]}",
            ) from None

    def _required(self) -> Deployment:
        found = self.deployed()
        if found is None:
            raise self._nothing()
        return found

    def _nothing(self) -> TidemillError:
        return TidemillError(
            ErrorKind.NOT_FOUND,
            f"there is no deployment {self._name!r}; `tidemill cluster up --config FILE` makes one",
        )


def progress(status: dict[str, Any]) -> tuple[str, bool]:
    """How far a deployment is: a line, and whether it has what it needs at least."""
    parts, done = [], bool(status["pools"])
    for name, pool in status["pools"].items():
        ready = sum(one["pool"] == name and one["phase"] == "ready" for one in status["processes"])
        done = done and ready >= pool["min"]
        parts.append(f"{name}: {ready} of {pool['desired']} engines ready")
        if pool["problem"]:
            parts[-1] += f" ({pool['problem']})"
    urls = [
        one["url"]
        for one in status["processes"]
        if one["kind"] == "gateway" and one["phase"] == "ready"
    ]
    parts.append(f"gateways: {', '.join(urls) or 'none ready'}")
    return "; ".join(parts), done and bool(urls)
