"""Models as data: DecoderSpec, tensor names, families."""
