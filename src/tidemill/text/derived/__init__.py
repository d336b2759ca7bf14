"""How a model writes calls and thinking, found out from what its chat template renders."""
