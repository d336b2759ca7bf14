"""Definitions of created models: parameters, and the files that state them (TOML, Modelfile)."""
