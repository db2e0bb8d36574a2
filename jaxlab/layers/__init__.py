"""Parts of networks as pure functions."""

from jaxlab.layers import norm, rope

__all__ = ["norm", "rope"]
