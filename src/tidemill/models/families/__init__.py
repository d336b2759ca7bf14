"""One short file per family: architecture names, spec, tensor-name rules."""
