"""Adapters to other people's interfaces; each module imports its own package.

envs.compat.gymnax      a gymnax environment
envs.compat.timestep    reset and step over timesteps, as navix and dm_env have them
envs.compat.gymnasium   single and vector environments for NumPy programs
"""
