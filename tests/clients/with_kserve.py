"""KServe's own clients, over HTTP and over gRPC: states, and tensors of texts."""

import asyncio
import os
import sys

import numpy as np
from common import MODEL
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)

url = sys.argv[1].removesuffix("/v1")
host = url.removeprefix("http://").rpartition(":")[0]
place = f"{host}:{os.environ['TIDEMILL_GRPC_PORT']}"
PROMPT = "The sea is"


def request(**parameters):
    """A request for text."""
    tensor = InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_), binary_data=False)
    return InferRequest(MODEL, [tensor], parameters={"max_tokens": 8, **parameters})


def text(response) -> str:
    """The text of a response."""
    found = next(o for o in response.outputs if o.name == "text_output").as_numpy()[0]
    return found.decode() if isinstance(found, bytes) else found


async def main() -> None:
    """Both clients."""
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        assert await rest.is_server_live(url) and await rest.is_server_ready(url)
        assert await rest.is_model_ready(url, MODEL)
        over_http = text(await rest.infer(url, request(), model_name=MODEL))
    async with InferenceGRPCClient(place) as remote:
        assert await remote.is_server_live() and await remote.is_server_ready()
        assert await remote.is_model_ready(MODEL)
        assert text(await remote.infer(request())) == over_http
        try:
            await remote.infer(request(priority=3))
        except Exception as error:
            assert "priority" in str(error), error
        else:
            raise AssertionError("priority")
    assert over_http.startswith(PROMPT)
    print(over_http)


asyncio.run(main())
