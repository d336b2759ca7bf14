"""KV blocks outside of a cache: the record of a block, for files and for other engines."""
