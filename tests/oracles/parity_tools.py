"""The outside half of `parity.py`: what runs on llama.cpp's side, as subcommands.

    convert SOURCE FOLDER OUT TYPE PRE   llama.cpp's converter (in the project's environment)
    convert_bare SOURCE FOLDER OUT       the same, F32, without a vocabulary
    quantize IN OUT TYPE                 llama.cpp's quantizer (in llama-cpp-python's environment)
    logits GGUF TOKENS OUT               logits of every position, float32 KV cache (the same)

Nothing of Tidemill is imported here.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_TYPES = {"q4_0": (2, 2), "q8_0": (7, 8)}  # llama_ftype, ggml type


def convert(source: str, folder: str, out: str, outtype: str, pre: str) -> None:
    """Run convert_hf_to_gguf.py; the tiny test tokenizers are unknown to it, so the name of their
    word rule is given instead of recognised by a hash."""
    sys.path[:0] = [source, str(Path(source) / "gguf-py")]
    from conversion import base  # type: ignore[import-not-found]

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", outtype]
    runpy.run_path(str(Path(source) / "convert_hf_to_gguf.py"), run_name="__main__")


def convert_bare(source: str, folder: str, out: str) -> None:
    """The converter on a checkpoint that has no tokenizer."""
    sys.path[:0] = [source, str(Path(source) / "gguf-py")]
    import gguf  # type: ignore[import-not-found]
    import torch
    from conversion import base, get_model_class

    path = Path(folder)
    values = base.ModelBase.load_hparams(path, False)
    family = get_model_class(base.get_model_architecture(values, base.ModelType.TEXT))

    class Bare(family):  # type: ignore[misc, valid-type]
        model_arch = family.model_arch
        no_mtp = True  # some converters look for layers that draft tokens

        def set_vocab(self) -> None:
            self.gguf_writer.add_tokenizer_model("no_vocab")

    with torch.inference_mode():
        model = Bare(path, gguf.LlamaFileType.ALL_F32, Path(out))
        keys = model.gguf_writer.kv_data[0]
        if not any(key.endswith("vocab_size") for key in keys):
            model.gguf_writer.add_vocab_size(values["vocab_size"])
        model.write()


def quantize(source: str, out: str, kind: str) -> None:
    """llama_model_quantize, all matrices to one type (the output projection too)."""
    import llama_cpp  # type: ignore[import-not-found]

    ftype, tensor_type = _TYPES[kind]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = 1
    params.pure = True
    params.output_tensor_type = tensor_type
    params.token_embedding_type = tensor_type
    code = llama_cpp.llama_model_quantize(source.encode(), out.encode(), params)
    if code != 0:
        raise SystemExit(f"llama_model_quantize failed with {code}")


def logits(path: str, tokens: str, out: str) -> None:
    """Evaluate the tokens and write float32 [tokens, vocab] as .npy."""
    import llama_cpp
    import numpy as np

    ids = [int(t) for t in tokens.split(",")]
    model = llama_cpp.Llama(
        model_path=path,
        n_ctx=256,
        n_threads=1,
        logits_all=True,
        verbose=False,
        type_k=0,
        type_v=0,
        flash_attn=False,
        embedding=False,
    )
    model.eval(ids)
    np.save(out, np.array(model.scores[: len(ids)], np.float32))


if __name__ == "__main__":
    {"convert": convert, "convert_bare": convert_bare, "quantize": quantize, "logits": logits}[
        sys.argv[1]
    ](*sys.argv[2:])
