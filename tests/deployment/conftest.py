"""A folder with files that deployments name, and a document in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.deployment_files import write_files

from tidemill.deployment.deployment import Deployment
from tidemill.deployment.document import parse_document
from tidemill.deployment.problems import DeploymentError
from tidemill.deployment.resolve import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that `GOOD` names."""
    write_files(tmp_path)
    return tmp_path


@pytest.fixture
def deploy(folder: Path) -> Callable[..., Deployment]:
    """Resolves the text of a deployment file in `folder`."""

    def resolved(text: str, **more: Any) -> Deployment:
        return resolve(parse_document(text.encode(), "t.toml", folder), **more)

    return resolved


@pytest.fixture
def problems(deploy: Callable[..., Deployment]) -> Callable[..., list[str]]:
    """The problems of a deployment file as lines."""

    def found(text: str, **more: Any) -> list[str]:
        with pytest.raises(DeploymentError) as caught:
            deploy(text, **more)
        return [str(problem) for problem in caught.value.problems]

    return found
