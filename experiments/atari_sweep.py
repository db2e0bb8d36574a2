"""How does Hadamax-PQN do over the 57 games of Atari, relative to humans?

Question: median and interquartile mean of human-normalised scores, one process a game.
Data:     `hadamax_pqn_atari` on each game and seed; any flags of it after `--`.
Expected: published, 200 M frames: median 3.19 (plain encoder 1.83). Not reproduced
          here: at the published 3 GPU-hours a game it takes a week of one GPU.

    python -m experiments.atari_sweep --games Pong Breakout --seeds 3 -- --preset gpu

Killed or stopped, the same command goes on: finished games are in `results.jsonl`, the
others continue from their checkpoints. `--aggregate` only draws what is there.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np

from jaxlab import io
from jaxlab.rl import host, statistics
from jaxlab.rl.host import scores

SUBSETS = {  # chosen by Aitchison et al. 2023 to predict the median over all
    "atari5": ["BattleZone", "DoubleDunk", "NameThisGame", "Phoenix", "Qbert"],
    "atari57": [game.name for game in host.atari57()],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then aggregate; the number of failed runs."""
    flags = parse(sys.argv[1:] if argv is None else argv)
    flags.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    if not flags.aggregate:
        done = {(r["game"], r["seed"]) for r in read(flags.out)}
        todo = [
            (game, seed)
            for seed in range(flags.seeds)  # one seed of all games first
            for game in flags.games
            if (game, seed) not in done
        ]
        with futures.ThreadPoolExecutor(flags.jobs) as pool:
            jobs = [pool.submit(play, flags, *job) for job in todo]
            for job in futures.as_completed(jobs):
                result = job.result()
                failed += result is None
                if result is not None:
                    append(flags.out, result)
                    print(f"{result['game']} seed {result['seed']}: {mean(result):.1f}")
    results = read(flags.out)
    if not results:
        print(f"no results in {flags.out}", file=sys.stderr)
        return failed or 1
    print(aggregate(flags.out, results))
    return failed


def parse(argv: Sequence[str]) -> argparse.Namespace:
    argv = list(argv)
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        prog="python -m experiments.atari_sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--games", nargs="+", default=["atari57"], help="names, or atari5, atari57"
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each game")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--out", type=pathlib.Path, default="runs/atari_sweep")
    parser.add_argument("--aggregate", action="store_true", help="run nothing")
    flags = parser.parse_args(argv[:cut])
    flags.options = argv[cut + 1 :]
    names = [n for name in flags.games for n in SUBSETS.get(name, [name])]
    try:
        flags.games = [scores.find(name).name for name in names]
    except ValueError as error:
        parser.error(str(error))
    if flags.seeds < 1 or flags.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    return flags


def play(flags: argparse.Namespace, game: str, seed: int) -> dict[str, Any] | None:
    """One run in a process of its own, resumed if it was begun; None if it failed."""
    directory = flags.out / f"{game}-{seed}"
    command = [sys.executable, "-m", "experiments.hadamax_pqn_atari", *flags.options]
    command += ["--game", game, "--seed", str(seed), "--out", str(directory), "--quiet"]
    if (directory / "config.json").exists():
        command.append("--resume")
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        last = (process.stderr.strip() or "no message").splitlines()[-1]
        print(f"{game} seed {seed} failed: {last}", file=sys.stderr)
        return None
    final = io.read_metrics(directory)[-1]
    return {"game": game, "seed": seed, "returns": final["final_returns"]}


def append(directory: pathlib.Path, result: dict[str, Any]) -> None:
    path = directory / "results.jsonl"
    cut = path.exists() and not path.read_bytes().endswith(b"\n")  # by a kill
    with path.open("a") as file:
        file.write("\n" * cut + json.dumps(result) + "\n")


def read(directory: pathlib.Path) -> list[dict[str, Any]]:
    """The finished runs; a line cut short by a kill is run again."""
    path = directory / "results.jsonl"
    results = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            results.append(json.loads(line))
        except ValueError:
            continue
    return results


def mean(result: dict[str, Any]) -> float:
    return float(np.mean(result["returns"]))


def matrix(results: Sequence[dict[str, Any]]) -> tuple[list[str], np.ndarray]:
    """Games, and human-normalised scores `[runs, games]` of the seeds that all have."""
    table: dict[str, dict[int, float]] = {}
    for result in results:
        normalised = host.human_normalised(result["game"], mean(result))
        table.setdefault(result["game"], {})[result["seed"]] = float(normalised)
    games = sorted(table)
    shared = sorted(set.intersection(*(set(table[game]) for game in games)))
    return games, np.array([[table[g][seed] for g in games] for seed in shared])


def aggregate(directory: pathlib.Path, results: Sequence[dict[str, Any]]) -> str:
    """Bars and the performance profile as pictures; the numbers as text."""
    games, achieved = matrix(results)
    if not achieved.size:
        return "no seed has finished every game yet"
    lines = [f"{len(games)} games, {len(achieved)} runs each, human-normalised:"]
    bars = {}
    for name, statistic in (
        ("median", statistics.median),
        ("IQM", statistics.iqm),
        ("mean", statistics.mean),
    ):
        at, low, high = map(float, statistics.bootstrap(statistic, achieved))
        bars[name] = at, min(low, at), max(high, at)
        lines.append(f"  {name:7} {at:.3f}  (95 % interval {low:.3f} to {high:.3f})")
    io.plot.bars(directory / "scores.png", bars, ylabel="human-normalised score")
    thresholds = np.linspace(0, 8, 81)
    profile = statistics.bootstrap(
        lambda s: statistics.performance_profile(s, thresholds), achieved
    )
    io.plot.learning_curve(
        directory / "profile.png",
        {"runs above": io.plot.Band(thresholds, *profile)},
        xlabel="human-normalised score",
        ylabel="fraction of runs",
    )
    for game, column in zip(games, achieved.T, strict=True):
        lines.append(f"  {game:18} {column.mean():8.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
