"""tritonclient over gRPC: tensors, decoupled streams, states, statistics, errors."""

import os
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
from common import MODEL

host = sys.argv[1].removeprefix("http://").rpartition(":")[0]
client = triton.InferenceServerClient(f"{host}:{os.environ['TIDEMILL_GRPC_PORT']}")
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL)
assert "binary_tensor_data" in client.get_server_metadata().extensions
metadata = client.get_model_metadata(MODEL)
assert metadata.inputs[0].name == "text_input" and list(metadata.inputs[0].shape) == [-1]
config = client.get_model_config(MODEL).config
assert config.backend == "tidemill" and config.model_transaction_policy.decoupled
assert any(card.name == MODEL for card in client.get_model_repository_index().models)


def tensor(name, values, datatype="BYTES"):
    """An input."""
    found = triton.InferInput(name, [len(values)], datatype)
    kind = np.object_ if datatype == "BYTES" else triton.triton_to_np_dtype(datatype)
    found.set_data_from_numpy(np.array(values, dtype=kind))
    return found


prompt = "The weather in Paris:"
bounds = [tensor("max_tokens", [8], "INT32"), tensor("temperature", [0], "FP32")]
texts = tensor("text_input", [prompt.encode(), b"The sea is"])
answer = client.infer(MODEL, [texts, *bounds], request_id="7")
assert answer.get_response().id == "7"
whole = [text.decode() for text in answer.as_numpy("text_output")]
assert whole[0].startswith(prompt)
wanted = triton.InferRequestedOutput("embedding")
vectors = client.infer(MODEL, [texts], outputs=[wanted]).as_numpy("embedding")
assert vectors.shape[0] == 2 and np.allclose((vectors**2).sum(1), 1, atol=1e-3)
query, documents = tensor("query", [b"sea"]), tensor("documents", [b"tide", b"bread"])
assert client.infer(MODEL, [query, documents]).as_numpy("score").shape == (2,)
assert client.get_inference_statistics(MODEL).model_stats[0].inference_count > 0

# A decoupled stream of two requests, whose responses are told apart by their ids.
responses = queue.Queue()
client.start_stream(lambda result, error: responses.put((result, error)))
for number, text in enumerate((prompt, "The sea is")):
    client.async_stream_infer(
        MODEL,
        [tensor("text_input", [text.encode()]), *bounds],
        request_id=str(number),
        enable_empty_final_response=True,
    )
client.async_stream_infer("nobody", [tensor("text_input", [b"a"])], request_id="2")
parts, ended, errors = {"0": "", "1": ""}, set(), []
while len(ended) < 2 or not errors:
    result, error = responses.get(timeout=60)
    if error is not None:
        errors.append(str(error))
        continue
    response = result.get_response()
    if response.parameters["triton_final_response"].bool_param:
        ended.add(response.id)
    else:
        parts[response.id] += result.as_numpy("text_output")[0].decode()
client.stop_stream()
assert prompt + parts["0"] == whole[0] and "The sea is" + parts["1"] == whole[1]
assert "nobody" in errors[0]

for name, more in (("nobody", {}), (MODEL, {"priority": 3}), (MODEL, {"sequence_id": 4})):
    try:
        client.infer(name, [texts], **more)
    except triton.InferenceServerException as error:
        assert next(iter(more), name) in str(error), error
        assert "NOT_FOUND" in error.status() if name != MODEL else "INVALID" in error.status()
    else:
        raise AssertionError(name)
client.load_model(MODEL)
print(whole[1])
