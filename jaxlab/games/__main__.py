"""`python -m jaxlab.games`: solve, eval, list.

    python -m jaxlab.games solve --game leduc --algo rtcfr+ --iterations 10000 --out run
    python -m jaxlab.games solve --game leduc ranks=5 --algo dcfr alpha=1.5 --plot c.png
    python -m jaxlab.games eval --game leduc --strategy run/strategy.json
    python -m jaxlab.games list

Options of the game follow --game, those of the algorithm --algo, as name=value. Solving
runs in float64 unless --x32 is given.
"""

import argparse
import ast
import inspect
import os
import pathlib
import sys
from collections.abc import Sequence

# One kernel per loop instead of one per operation: 2-10 times faster on small games.
# It must be set before JAX starts, so only a program may do it, not the library.
_XLA = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=8000000"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 2 for anything the user can mend."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except (ValueError, ImportError, OSError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxlab.games",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    solve = commands.add_parser("solve", help="run an algorithm on a game")
    _add_game(solve)
    solve.add_argument("--algo", nargs="+", required=True, metavar=("NAME", "K=V"))
    solve.add_argument("--iterations", type=int, default=10_000)
    solve.add_argument("--log-every", default="log", help='a number, or "log"')
    solve.add_argument("--stop-below", type=float, help="NashConv to stop at")
    solve.add_argument("--seed", type=int, help="perturb the start by 1e-12")
    solve.add_argument("--out", help="folder for history, strategy and state")
    solve.add_argument("--plot", help="file for the curve")
    precision = solve.add_mutually_exclusive_group()
    precision.add_argument("--x64", action="store_true", help="float64, the default")
    precision.add_argument("--x32", action="store_true", help="float32")
    solve.set_defaults(command=_solve)
    evaluate = commands.add_parser("eval", help="NashConv of a strategy file")
    _add_game(evaluate)
    evaluate.add_argument("--strategy", required=True, help=".json or .csv of a solve")
    evaluate.set_defaults(command=_evaluate)
    names = commands.add_parser("list", help="games and algorithms with their options")
    names.set_defaults(command=_list)
    return parser


def _add_game(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--game",
        nargs="+",
        required=True,
        metavar=("NAME", "K=V"),
        help="a name of `list`, a .npz/.json of tables, or openspiel:NAME",
    )


def _solve(arguments) -> int:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_extra_options" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_XLA}".strip()
    import jax

    from jaxlab.games import registry
    from jaxlab.games.solving import solve

    log_every = arguments.log_every
    with jax.enable_x64(not arguments.x32):
        name, *options = arguments.algo
        algorithm = registry.make_algorithm(name, **_options(options))
        game = _game(arguments.game)
        print(game.summary())
        settings = ", ".join(f"{k}={v:g}" for k, v in algorithm.hparams.items())
        print(f"{algorithm.name}: {settings}")

        def show(state, row):
            offered = "nashconv_avg" if algorithm.averages else "nashconv_last"
            print(
                f"{row['iteration']:>10,}  nashconv {row[offered]:.6e}  "
                f"value {row['value_p0']:+.9f}  {row['wall_time']:.2f} s"
            )
            return False

        result = solve(
            game,
            algorithm,
            arguments.iterations,
            log_every=log_every if log_every == "log" else int(log_every),
            seed=arguments.seed,
            stop_below=arguments.stop_below,
            callback=show,
        )
        if arguments.out:
            result.save(arguments.out)
        if arguments.plot:
            result.plot(arguments.plot)
        print(result.headline())
    return 0


def _evaluate(arguments) -> int:
    from jaxlab.games import evaluate, export

    game = _game(arguments.game)
    profile = export.read_strategy(game, pathlib.Path(arguments.strategy))
    responses = [evaluate.br_value(game, p, profile) for p in (0, 1)]
    print(f"value_p0 {evaluate.expected_value(game, profile):+.12g}")
    print(f"best responses {responses[0]:+.12g} {responses[1]:+.12g}")
    print(f"nashconv {sum(responses):.12g} (exploitability {sum(responses) / 2:.12g})")
    return 0


def _list(arguments) -> int:
    from jaxlab.games import registry

    for title, table in (
        ("games", registry.GAMES),
        ("algorithms", registry.ALGORITHMS),
    ):
        print(title)
        for name, maker in table.items():
            parameters = inspect.signature(maker).parameters.values()
            shown = [
                str(p.name) if p.default is p.empty else f"{p.name}={p.default}"
                for p in parameters
                if p.kind is not p.VAR_KEYWORD
            ]
            print(f"  {name:<12}{', '.join(shown)}")
    return 0


def _game(words: Sequence[str]):
    from jaxlab.games import registry
    from jaxlab.games.efg import EFG
    from jaxlab.games.openspiel import from_openspiel

    name, *options = words
    if name.startswith("openspiel:"):
        return from_openspiel(name.removeprefix("openspiel:"))
    if name.endswith((".npz", ".json")):
        return EFG.from_tables(name)
    return registry.make_game(name, **_options(options))


def _options(words: Sequence[str]) -> dict:
    options = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise ValueError(f"option {word!r} must read name=value")
        try:
            options[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            options[name] = text  # a word such as order=random
    return options


if __name__ == "__main__":
    raise SystemExit(main())
