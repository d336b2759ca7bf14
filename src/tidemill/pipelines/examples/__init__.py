"""Pipelines that come with the package: `python -m tidemill.pipelines.examples` prints where."""
