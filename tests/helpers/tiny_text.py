"""A complete small text side: every byte is a token, with a few merges and chat markers."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from tidemill.base.byte_alphabet import byte_level_alphabet
from tidemill.base.tokenizer_data import TokenizerData

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}(quick)"
    "{% endif %}{% endif %}"
)


def tokenizer_json() -> bytes:
    """Ids 0 to 255 are the bytes in byte order; 256.. are the chat markers; no merges."""
    alphabet = {byte: char for char, byte in byte_level_alphabet().items()}
    vocab = {alphabet[byte]: byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    marks = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
    backend.add_special_tokens(marks)
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", 256)]
    )
    return backend.to_str().encode()


def tokenizer_data() -> TokenizerData:
    """Data for `Tokenizer`: <|bos|> is 256 and is put before plain text, <|end|> is 257."""
    return TokenizerData(
        tokenizer_json=tokenizer_json(),
        chat_template=CHAT_TEMPLATE,
        special={"bos_token": "<|bos|>", "eos_token": "<|end|>"},
    )
