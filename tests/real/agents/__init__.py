"""The agents of the catalogue with their real programs against a model server on loopback."""
