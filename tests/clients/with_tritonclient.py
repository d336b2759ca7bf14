"""tritonclient over HTTP: texts, embeddings and scores as tensors, states, statistics, errors."""

import sys

import numpy as np
import tritonclient.http as triton
from common import MODEL

client = triton.InferenceServerClient(sys.argv[1].removeprefix("http://").removesuffix("/v1"))
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL)
assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
assert client.get_model_metadata(MODEL)["inputs"][0]["name"] == "text_input"
assert client.get_model_config(MODEL)["backend"] == "tidemill"
assert any(card["name"] == MODEL for card in client.get_model_repository_index())


def tensor(name, values, datatype="BYTES", **more):
    """An input."""
    found = triton.InferInput(name, [len(values)], datatype)
    kind = np.object_ if datatype == "BYTES" else triton.triton_to_np_dtype(datatype)
    found.set_data_from_numpy(np.array(values, dtype=kind), **more)
    return found


prompt = "The weather in Paris:"
bounds = [tensor("max_tokens", [8], "INT32"), tensor("temperature", [0], "FP32")]
texts = tensor("text_input", [prompt.encode(), b"The sea is"])
answer = client.infer(MODEL, [texts, *bounds]).as_numpy("text_output")
plain = tensor("text_input", [prompt, "The sea is"], binary_data=False)
wanted = triton.InferRequestedOutput("text_output", binary_data=False)
asked = {"max_tokens": 8, "temperature": 0}
same = client.infer(MODEL, [plain], outputs=[wanted], parameters=asked, timeout=60_000_000)
assert [text.decode() for text in answer] == [*same.as_numpy("text_output")]
assert answer[0].decode().startswith(prompt)

wanted = triton.InferRequestedOutput("embedding")
vectors = client.infer(MODEL, [texts], outputs=[wanted], request_id="7").as_numpy("embedding")
assert vectors.shape[0] == 2 and np.allclose((vectors**2).sum(1), 1, atol=1e-3)
query, documents = tensor("query", [b"sea"]), tensor("documents", [b"tide", b"bread"])
assert client.infer(MODEL, [query, documents]).as_numpy("score").shape == (2,)
assert client.get_inference_statistics(MODEL)["model_stats"][0]["inference_count"] > 0

for name, more in (("nobody", {}), (MODEL, {"priority": 3}), (MODEL, {"sequence_id": 4})):
    try:
        client.infer(name, [texts], **more)
    except triton.InferenceServerException as error:
        assert next(iter(more), name) in str(error), error
    else:
        raise AssertionError(name)
print(answer[1].decode())
