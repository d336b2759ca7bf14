"""Where models are pulled from: the hub, an address, a path, and packages of an index."""
