"""Revisions of the schema, a chain, each with its way back.

To add one: `versions/000N_concern.py` with `revision`, `down_revision` (the chain's end before),
`upgrade` and `downgrade`, and `store.schema.HEAD`. Revisions name tables and columns themselves and
never import `store.tables`, which will have moved on.
"""
