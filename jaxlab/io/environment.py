"""What a run depended on: versions, devices, revision, command line."""

import datetime
import pathlib
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from typing import Any

PACKAGES = (
    "jaxlab-suite",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
)


def describe() -> dict[str, Any]:
    """The record that a run writes at each start."""
    import jax

    devices = jax.devices()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions(PACKAGES),
        "backend": jax.default_backend(),
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "revision": revision(),
    }


def versions(names) -> dict[str, str | None]:
    """Installed version of each distribution, None where absent."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def revision() -> str | None:
    """Git revision of this checkout, `+dirty` with local changes; None without git."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit and commit + ("+dirty" if changed else "")


def _git(root: pathlib.Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
