"""Parts of networks as pure functions."""

from jaxlab.layers import rope

__all__ = ["rope"]
