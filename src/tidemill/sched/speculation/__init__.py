"""Speculation in the scheduler: what a stream may have drafted, and how many drafts it verifies.

None of this changes an answer: every position of a row is sampled as in a step of its own, and a
draft that did not come true is forgotten.
"""
