"""Strategies and results in files that people and other programs read."""

import csv
import json
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxlab.games.efg import EFG
from jaxlab.games.evaluate import Profile
from jaxlab.games.tables import Tables

if TYPE_CHECKING:
    from jaxlab.games.solving import Result


def named_strategy(game: EFG, profile: Profile) -> list[dict[str, dict[str, float]]]:
    """Per player: infoset name to action name to probability."""
    tables = game.require_tables()
    out = []
    for p in (0, 1):
        strategy = np.asarray(profile[p], np.float64)
        if strategy.shape != (tables.num_sequences[p],):
            raise ValueError(
                f"strategy of player {p} has shape {strategy.shape}; one strategy of "
                f"{tables.num_sequences[p]} sequences is needed (pick one of a batch)"
            )
        named: dict[str, dict[str, float]] = {}
        for infoset, name in enumerate(game.infosets(p)):
            first, count = _block(tables, p, infoset)
            block = range(first, first + count)
            named[name] = {
                _action(tables, p, s, first): float(strategy[s]) for s in block
            }
        out.append(named)
    return out


def from_named(game: EFG, named) -> Profile:
    """The inverse of `named_strategy`.

    Raises:
      ValueError: if an infoset or action is missing or unknown, or a block does not
        sum to 1 (within 1e-6); it is named.
    """
    tables = game.require_tables()
    out = []
    for p in (0, 1):
        strategy = np.ones(tables.num_sequences[p])
        names = game.infosets(p)
        unknown = sorted(set(named[p]) - set(names))
        if unknown:
            raise ValueError(
                f"player {p} has no infoset {unknown[0]!r} in {tables.name}"
            )
        for infoset, name in enumerate(names):
            if name not in named[p]:
                raise ValueError(f"strategy of player {p} lacks infoset {name!r}")
            first, count = _block(tables, p, infoset)
            actions = [
                _action(tables, p, s, first) for s in range(first, first + count)
            ]
            given = named[p][name]
            if sorted(given) != sorted(actions):
                raise ValueError(
                    f"infoset {name!r} of player {p} has actions {actions}; "
                    f"the strategy gives {sorted(given)}"
                )
            block = np.array([given[a] for a in actions])
            if (block < 0).any() or abs(block.sum() - 1) > 1e-6:
                raise ValueError(
                    f"infoset {name!r} of player {p}: probabilities {block.tolist()} "
                    "must not be negative and must sum to 1"
                )
            strategy[first : first + count] = block / block.sum()
        out.append(strategy)
    return out[0], out[1]


def write_strategy(game: EFG, profile: Profile, path) -> None:
    """`.json` (nested names) or `.csv` (player, infoset, action, probability)."""
    path = pathlib.Path(path)
    named = named_strategy(game, profile)
    if path.suffix == ".json":
        path.write_text(json.dumps({"game": game.name, "players": named}, indent=1))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["player", "infoset", "action", "probability"])
            for p, infosets in enumerate(named):
                for name, block in infosets.items():
                    for action, probability in block.items():
                        writer.writerow([p, name, action, repr(probability)])
    else:
        raise ValueError(f"path={str(path)!r} must end in .json or .csv")


def read_strategy(game: EFG, path) -> Profile:
    """What `write_strategy` wrote, checked against the game."""
    path = pathlib.Path(path)
    if path.suffix == ".json":
        return from_named(game, json.loads(path.read_text())["players"])
    if path.suffix != ".csv":
        raise ValueError(f"path={str(path)!r} must end in .json or .csv")
    named: list[dict[str, dict[str, float]]] = [{}, {}]
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            block = named[int(row["player"])].setdefault(row["infoset"], {})
            block[row["action"]] = float(row["probability"])
    return from_named(game, named)


def save(result: "Result", directory) -> None:
    """The files of `Result.save`."""
    from jaxlab import io

    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    columns = {k: v.reshape(len(v), -1) for k, v in result.history.items()}
    width = max(v.shape[1] for v in columns.values())
    with (directory / "history.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["setting", *columns])
        for setting in range(width):
            for row in range(len(columns["iteration"])):
                values = (
                    v[row, min(setting, v.shape[1] - 1)] for v in columns.values()
                )
                writer.writerow([setting, *(repr(float(v)) for v in values)])
    about = {
        "game": result.game.name,
        "algorithm": result.algorithm.name,
        "hparams": result.hparams,
    }
    (directory / "result.json").write_text(json.dumps(about, indent=1))
    if result.strategy[0].ndim == 1:
        write_strategy(result.game, result.strategy, directory / "strategy.json")
        write_strategy(result.game, result.strategy, directory / "strategy.csv")
    checkpoints = io.Checkpoints(directory / "checkpoints")
    checkpoints.save(int(result.state.iteration), result.state)
    checkpoints.close()


def restore(game: EFG, algorithm, directory, hparams=None, dtype=None):
    """The state that `save` wrote, to be passed to `solve(..., state=)`."""
    from jaxlab import io

    game = game.astype(dtype or game.dtype)
    like = algorithm.init(game, hparams)
    checkpoints = io.Checkpoints(pathlib.Path(directory) / "checkpoints")
    _, state = checkpoints.restore(like)
    checkpoints.close()
    return state


def plot(results: Mapping[str, "Result"], path, against: str = "iteration") -> None:
    """NashConv of what each run offers, log-log, against "iteration" or "wall_time"."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for label, result in results.items():
        column = "nashconv_avg" if result.algorithm.averages else "nashconv_last"
        history = result.history
        values = np.maximum(history[column], 1e-17).reshape(len(history[column]), -1)
        for i in range(values.shape[1]):
            axes.loglog(
                np.maximum(history[against], 1e-6),
                values[:, i],
                label=label if i == 0 else None,
                color=axes.lines[-1].get_color() if i else None,
                linewidth=1.2,
            )
    axes.set_xlabel("iterations" if against == "iteration" else "seconds")
    axes.set_ylabel("NashConv")
    axes.set_title(next(iter(results.values())).game.name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=150)


def _block(tables: Tables, p: int, infoset: int) -> tuple[int, int]:
    return int(tables.first_seq[p][infoset]), int(tables.num_actions[p][infoset])


def _action(tables: Tables, p: int, sequence: int, first: int) -> str:
    if tables.actions is None:
        return str(sequence - first)
    return tables.actions[p][sequence]
