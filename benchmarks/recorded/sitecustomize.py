"""On PYTHONPATH, this has an engine process append every step that it computes to $STEPS: a line
of JSON with the time of its end (`base.clock.monotonic`), its work and its seconds."""

from __future__ import annotations

import os
import sys

if "tidemill.engine.process" in sys.orig_argv and "STEPS" in os.environ:
    import dataclasses
    import json
    from pathlib import Path

    from tidemill.base.clock import monotonic
    from tidemill.executor import inproc
    from tidemill.simulate.recording import StepRecorder

    _open = inproc.open_inproc
    _file = Path(os.environ["STEPS"]).open("a", buffering=1)  # noqa: SIM115

    class _Lines(list):
        def __init__(self, kind):
            self.kind = kind

        def append(self, one):
            _file.write(json.dumps([self.kind, monotonic(), *one]) + "\n")

    def _recorded(*args, **kwargs):
        opened = _open(*args, **kwargs)
        recorder = StepRecorder(opened.executor, opened.sliced_layers)
        recorder.steps, recorder.gaps = _Lines("step"), _Lines("gap")
        facts = {
            "groups": opened.num_groups, "recurrent": opened.recurrent,
            "snapshots": opened.snapshots, "layers": opened.sliced_layers,
        }  # fmt: skip
        info = opened.info
        for name in (
            "family", "parameters", "backend", "isa", "dtype", "quantization", "kv_dtype",
            "threads", "weight_bytes", "kv_bytes_per_token", "block_size", "num_blocks",
            "max_num_seqs", "max_step_tokens", "max_model_len",
        ):  # fmt: skip
            facts[name] = getattr(info, name)
        _file.write(json.dumps({"identity": opened.identity, **facts}) + "\n")
        return dataclasses.replace(opened, executor=recorder)

    inproc.open_inproc = _recorded
