"""Q-networks, and two helpers that turn any flax module into `(init, apply)`."""

from jaxlab.rl.networks.actor_critic import ActorCritic
from jaxlab.rl.networks.convolutional import MinAtarCNN, NatureCNN
from jaxlab.rl.networks.diagnostics import (
    Diagnostics,
    diagnose,
    dormant_fraction,
    effective_rank,
    feature_norm,
)
from jaxlab.rl.networks.functional import Network, from_linen, from_nnx
from jaxlab.rl.networks.hadamax import Hadamax, HadamaxConfig
from jaxlab.rl.networks.layers import Conv, Dense, Head, LayerNorm, convolve, pool
from jaxlab.rl.networks.mlp import MLP
from jaxlab.rl.networks.recurrence import RecurrentNetwork, recurrent
from jaxlab.rl.networks.residual import ResNet

__all__ = [
    "MLP",
    "ActorCritic",
    "Conv",
    "Dense",
    "Diagnostics",
    "Hadamax",
    "HadamaxConfig",
    "Head",
    "LayerNorm",
    "MinAtarCNN",
    "NatureCNN",
    "Network",
    "RecurrentNetwork",
    "ResNet",
    "convolve",
    "diagnose",
    "dormant_fraction",
    "effective_rank",
    "feature_norm",
    "from_linen",
    "from_nnx",
    "pool",
    "recurrent",
]
