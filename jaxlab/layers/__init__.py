"""Parts of networks as pure functions."""

from jaxlab.layers import norm, residual, rope, weight_norm

__all__ = ["norm", "residual", "rope", "weight_norm"]
