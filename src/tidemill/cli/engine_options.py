"""Options of the engine that several commands share, with the same words."""

from __future__ import annotations

import typer

BACKEND = typer.Option("native", help="native or torch.")
DEVICE = typer.Option("cpu", help="cpu; with --backend torch any torch device.")
DTYPE = typer.Option("auto", help="Computing type: auto, float32 or bfloat16.")
QUANTIZE = typer.Option("none", help="Quantize float weights at load: none, q8_0 or q4_0.")
KV_DTYPE = typer.Option("auto", help="KV cache type: auto, float32, bfloat16 or int8.")
MAX_MODEL_LEN = typer.Option(None, help="Context (prompt and output); default: the model's.")
KV_MEMORY = typer.Option(None, help="KV cache size such as 4GiB; default: from free memory.")
THREADS = typer.Option(None, help="Compute threads; default: the CPUs it may use.")
ISA = typer.Option(None, help="Force an instruction set: avx512, avx2 or portable.")
BLOCK_SIZE = typer.Option(32, help="Tokens per KV block: 16, 32, 64 or 128.")
MAX_NUM_SEQS = typer.Option(256, help="Sequences that may run at once.")
MAX_STEP_TOKENS = typer.Option(512, help="Token budget of a step.")
PREFIX_CACHING = typer.Option(True, help="Find blocks of earlier prompts again.")
