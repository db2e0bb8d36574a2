"""Animated GIF, pixel-exact."""

import os
from collections.abc import Sequence

import numpy as np


def save_gif(
    path: str | os.PathLike,
    frames: Sequence[np.ndarray] | np.ndarray,
    *,
    fps: float | int = 8,
    scale: int = 1,
    hold: float | int = 1,
) -> None:
    """Write frames as a looping GIF whose pixels are exactly those given.

    Args:
      frames: `[T, H, W, 3]`, uint8.
      fps: frames per second; GIF counts in 10 ms, so at most 50 in most viewers.
      scale: each pixel becomes `scale x scale`.
      hold: seconds that the last frame stays.

    Raises:
      ValueError: if there is no frame, the shape or dtype is another, or the frames
        hold more than 256 colours together (reduce them first: nothing is dithered
        silently).
    """
    from PIL import Image

    frames = np.asarray(frames)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(
            f"frames must be uint8 [T, H, W, 3]; got {frames.dtype} {frames.shape}"
        )
    if not frames.size:
        raise ValueError(f"frames must not be empty; got shape {frames.shape}")
    if fps <= 0 or scale < 1:
        raise ValueError(f"fps={fps} must be above 0 and scale={scale} at least 1")
    codes = frames.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, indices = np.unique(codes, return_inverse=True)
    if len(colours) > 256:
        raise ValueError(
            f"frames hold {len(colours)} colours, a GIF at most 256; reduce them first"
        )
    indices = indices.reshape(codes.shape).astype(np.uint8)
    indices = indices.repeat(scale, axis=1).repeat(scale, axis=2)
    palette = [int(c) >> shift & 255 for c in colours for shift in (16, 8, 0)]
    images = []
    for plane in indices:
        image = Image.fromarray(plane)
        image.putpalette(palette)
        images.append(image)
    durations = [max(round(100 / fps), 2) * 10] * len(images)
    durations[-1] += round(hold * 100) * 10
    images[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=durations,
        loop=0,
        optimize=False,
        disposal=1,
    )
