"""cohere: embed in both versions of the API, and rerank."""

import sys

import cohere
from common import MODEL

url = sys.argv[1].removesuffix("/v1")
client = cohere.ClientV2(base_url=url, api_key="none")
texts = ["the tide", "a loaf of bread"]
answer = client.embed(
    model=MODEL, texts=texts, input_type="search_document", embedding_types=["float"]
)
assert len(answer.embeddings.float_) == 2, answer
older = cohere.Client(base_url=url, api_key="none").embed(
    model=MODEL, texts=texts, input_type="search_document", truncate="NONE"
)
assert older.embeddings == answer.embeddings.float_
ranks = client.rerank(model=MODEL, query="the sea", documents=texts, top_n=1).results
try:
    client.embed(model=MODEL, texts=texts, input_type="image", embedding_types=["int8"])
except cohere.errors.BadRequestError as error:
    assert "embedding_types" in str(error) or "input_type" in str(error), error
else:
    raise AssertionError("int8")
print(texts[ranks[0].index])
