"""`serve --grpc-port`: the KServe protocol over gRPC beside HTTP, with the bundled model."""

from __future__ import annotations

import re

import grpc
from helpers.real_server import RealServer

from tidemill.server.grpc.messages import message
from tidemill.server.grpc.service import SERVICE


def test_both_protocols_give_the_same_text() -> None:
    with RealServer("--grpc-port", "0") as server:
        found = re.search(r"over gRPC on port (\d+)", server.text)
        assert found is not None, server.text
        request = message("ModelInferRequest")(model_name="brook")
        tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"The sea is")
        request.parameters["max_tokens"].int64_param = 8
        request.parameters["exclude_input_in_output"].bool_param = True
        with grpc.insecure_channel(f"127.0.0.1:{found[1]}") as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/ModelInfer",
                request_serializer=message("ModelInferRequest").SerializeToString,
                response_deserializer=message("ModelInferResponse").FromString,
            )
            text = call(request, timeout=60).raw_output_contents[0][4:].decode()
        same = server.complete(prompt="The sea is", max_tokens=8)
        assert text == same["choices"][0]["text"]
        assert server.stop() == 0
