"""Traffic of a name's versions: routing, statistics and rollouts. Pure: no I/O, no event loop."""
