"""huggingface_hub: text_generation, whole and streamed, with details, a grammar and errors."""

import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

client = InferenceClient(sys.argv[1].removesuffix("/v1"))
prompt = "The weather in Paris:"

text = client.text_generation(prompt, max_new_tokens=12)
assert text, text
# As from TGI, the stream shows the end token, which is not part of the text.
stream = client.text_generation(prompt, max_new_tokens=12, stream=True)
assert "".join(stream).removesuffix("<|im_end|>") == text
full = client.text_generation(prompt, max_new_tokens=12, return_full_text=True)
assert full == prompt + text, full

whole = client.text_generation(
    prompt,
    max_new_tokens=12,
    details=True,
    decoder_input_details=True,
    top_n_tokens=2,
    do_sample=True,
    best_of=2,
    temperature=0.7,
    top_k=20,
    top_p=0.9,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    typical_p=1.0,
    seed=7,
    stop=["\n\n"],
    truncate=64,
    watermark=False,
)
details = whole.details
assert details.generated_tokens == len(details.tokens) == len(details.top_tokens), details
assert details.prefill and details.seed == 7 and len(details.best_of_sequences) == 1, details

events = [*client.text_generation(prompt, max_new_tokens=12, stream=True, details=True)]
assert events[-1].generated_text == text and events[-1].details.generated_tokens == len(events)
assert [e.index for e in events] == [*range(1, len(events) + 1)]

grammar = {"type": "regex", "value": "[0-9]{2} degrees"}
shaped = client.text_generation(prompt, grammar=grammar)
assert shaped[2:] == " degrees", shaped

for refused in ({"watermark": True}, {"adapter_id": "none"}, {"typical_p": 1.5}):
    try:
        client.text_generation(prompt, **refused)
    except ValidationError as error:
        assert next(iter(refused)) in str(error), error
    else:
        raise AssertionError(refused)
print(shaped)
