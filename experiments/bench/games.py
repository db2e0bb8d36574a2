"""CFR+ and RTCFR+ against OpenSpiel's C++ solver and LiteEFG.

Each solver runs in a process of its own and answers requests for windows of about half
a CPU second; windows of all solvers alternate, so that a busy machine slows all alike.
First every solver runs 10 iterations and reports NashConv of the linear average: ours
and OpenSpiel's must agree to 1e-9, and so must LiteEFG's, which averages after the
update, and ours with `average="post"`.

Ours is float64 on one thread. "one kernel" sets the XLA flag of the command line
`python -m jaxlab.games`: it compiles the loop of a small game into a single kernel.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from experiments.bench import harness

WINDOWS = 5
SECONDS = 0.4
ONE_KERNEL = (
    "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=8000000"
)
GAMES = {
    "kuhn": "kuhn_poker",
    "leduc": "leduc_poker",
    "liars_dice 4": "liars_dice(dice_sides=4)",
    "goofspiel 4": "turn_based_simultaneous_game(game=goofspiel("
    "num_cards=4,imp_info=True,points_order=descending))",
}

# Protocol: one line "ready {json}" once warm; then for each line "n" read, run for n
# CPU seconds and answer {"iterations", "cpu_s", "wall_s"}.
_SERVE = """
import json, sys, time
def serve(step, chunk, info):
    print("ready " + json.dumps(info), flush=True)
    for line in sys.stdin:
        seconds, done = float(line), 0
        cpu, wall = time.process_time(), time.perf_counter()
        while time.process_time() - cpu < seconds:
            step(chunk)
            done += chunk
        row = {"iterations": done, "cpu_s": time.process_time() - cpu,
               "wall_s": time.perf_counter() - wall}
        print("row " + json.dumps(row), flush=True)
"""

_OPENSPIEL = (
    _SERVE
    + """
import pyspiel
game = pyspiel.load_game(sys.argv[1])
start = time.process_time()
solver = pyspiel.CFRPlusSolver(game)
for _ in range(10):
    solver.evaluate_and_update_policy()
value = pyspiel.nash_conv(game, solver.average_policy())
def step(n):
    for _ in range(n):
        solver.evaluate_and_update_policy()
serve(step, 10, {"nashconv": value, "start_s": time.process_time() - start})
"""
)

_LITEEFG = (
    _SERVE
    + """
import os, tempfile
os.chdir(tempfile.mkdtemp())
import LiteEFG as leg, pyspiel
from LiteEFG.baselines.CFRplus import graph
start = time.process_time()
solver = graph()
env = leg.OpenSpielEnv(pyspiel.load_game(sys.argv[1]), traverse_type="Enumerate",
                       regenerate=True)
env.set_graph(solver)
for _ in range(10):
    solver.update_graph(env)
    env.update_strategy(solver.current_strategy())
value = sum(env.exploitability(solver.current_strategy(), "linear-avg-iterate"))
def step(n):
    for _ in range(n):
        solver.update_graph(env)
serve(step, 10, {"nashconv": value, "start_s": time.process_time() - start})
"""
)

_OURS = (
    _SERVE
    + """
import functools
import jax
jax.config.update("jax_enable_x64", True)
from jaxlab import games
from jaxlab.games import algorithm as lib
name, solver, average = sys.argv[1:4]
made = {"kuhn": games.kuhn, "leduc": games.leduc, "goofspiel 4": games.goofspiel,
        "leduc isomorphic": lambda: games.leduc(suit_isomorphism=True),
        "liars_dice 4": lambda: games.liars_dice(4)}[name]()
algorithm = (games.rtcfr_plus() if solver == "rtcfr+" else
             games.cfr_plus(average=average))
result = games.solve(made, algorithm, 10, log_every=10)
game = made.astype("float64")
@jax.jit
def advance(game, state, n):
    return lib.advance(algorithm.update, game, state, n)
start = time.process_time()
state = jax.block_until_ready(advance(game, result.state, 1))
compile_s = time.process_time() - start
def step(n):
    global state
    state = jax.block_until_ready(advance(game, state, n))
chunk = 20
while True:
    start = time.process_time()
    step(chunk)
    if time.process_time() - start > 0.05:
        break
    chunk *= 2
serve(step, chunk, {"nashconv": float(result.nashconv), "start_s": compile_s})
"""
)


class _Server:
    """A solver in a process of its own."""

    def __init__(self, python, script, *arguments, flags: str = ""):
        threads = "--xla_cpu_multi_thread_eigen=false"
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        env["XLA_FLAGS"] = f"{threads} {flags}"
        self.process = subprocess.Popen(
            [str(python), "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        self.rows: list[dict] = []

    def read(self, word: str) -> dict:
        assert self.process.stdout is not None
        for line in self.process.stdout:  # LiteEFG prints banners of its own
            if line.startswith(word + " "):
                return json.loads(line[len(word) :])
        raise RuntimeError(f"a solver ended early: {self.process.args[3:]}")  # type: ignore[index]

    def window(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        self.rows.append(self.read("row"))

    def rate(self, clock: str = "cpu_s") -> float:
        return statistics.median(r["iterations"] / r[clock] for r in self.rows)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure() -> list[harness.Case]:
    """Iterations per CPU second of every solver on every game."""
    peer, cases = harness.peer_python("games"), []
    for name, theirs in GAMES.items():
        servers = {
            "ours": _Server(sys.executable, _OURS, name, "cfr+", "pre"),
            "one kernel": _Server(
                sys.executable, _OURS, name, "cfr+", "pre", flags=ONE_KERNEL
            ),
            "rtcfr+": _Server(sys.executable, _OURS, name, "rtcfr+", "pre"),
            "post": _Server(sys.executable, _OURS, name, "cfr+", "post"),
        }
        if name == "leduc":
            servers["isomorphic"] = _Server(
                sys.executable, _OURS, "leduc isomorphic", "cfr+", "pre"
            )
        if peer is not None:
            servers["openspiel"] = _Server(peer, _OPENSPIEL, theirs)
            servers["liteefg"] = _Server(peer, _LITEEFG, theirs)
        try:
            ready = {key: server.read("ready") for key, server in servers.items()}
            servers.pop("post").close()
            _check(name, ready)
            for round_ in range(WINDOWS + 1):
                for server in servers.values():
                    server.window(SECONDS)
                    if round_ == 0:
                        server.rows.clear()  # warm-up
            cases += _cases(name, servers, ready)
        finally:
            for server in servers.values():
                server.close()
    cases.append(_sweep())
    return cases


def _check(name: str, ready: dict[str, dict]) -> None:
    pairs = [("ours", "openspiel"), ("ours", "one kernel"), ("post", "liteefg")]
    for ours, peer in pairs:
        if peer not in ready:
            continue
        a, b = ready[ours]["nashconv"], ready[peer]["nashconv"]
        if abs(a - b) > 1e-9 * abs(b):
            raise RuntimeError(f"{name}: {ours} has NashConv {a}, {peer} {b}")


def _cases(name: str, servers: dict, ready: dict) -> list[harness.Case]:
    unit = "iterations/CPU-s"

    def rate(key):
        return servers[key].rate()

    def peer_rate(key):
        return rate(key) if key in servers else None

    rows = []
    for label, key in (("", "ours"), (" one kernel", "one kernel")):
        for peer in ("openspiel", "liteefg"):
            title = f"{name} cfr+{label} {peer}"
            rows.append(harness.Case(title, rate(key), peer_rate(peer), unit))
    title = f"{name} rtcfr+ (peer: cfr+) liteefg"
    rows.append(harness.Case(title, rate("rtcfr+"), peer_rate("liteefg"), unit))
    if "isomorphic" in servers:
        title = f"{name} isomorphic cfr+ openspiel"
        rows.append(
            harness.Case(title, rate("isomorphic"), peer_rate("openspiel"), unit)
        )
    for key in ("ours", "rtcfr+"):
        title = f"{name} compile {key}"
        rows.append(harness.Case(title, ready[key]["start_s"], None, "CPU-s", True))
    return rows


def _sweep() -> harness.Case:
    """What 64 settings of RTCFR+ on Leduc cost, in single runs."""
    import jax

    from jaxlab import games
    from jaxlab.games import algorithm as lib

    with jax.enable_x64(True):
        algorithm = games.rtcfr_plus()
        game = games.leduc().astype("float64")
        sweep = games.grid(mu=[10.0**-k for k in range(1, 9)], T_u=range(20, 180, 20))
        states = [algorithm.init(game), algorithm.init(game, sweep)]

        @jax.jit
        def advance(game, state, n):
            return lib.advance(algorithm.update, game, state, n)

        def cost(state, n):
            cpu = time.process_time()
            jax.block_until_ready(advance(game, state, n))
            return (time.process_time() - cpu) / n

        for state in states:
            cost(state, 2)
        samples = [(cost(states[0], 2000), cost(states[1], 100)) for _ in range(5)]
    single, batch = (statistics.median(s[i] for s in samples) for i in (0, 1))
    return harness.Case(
        "leduc rtcfr+ sweep of 64, peer: 64 single runs",
        batch,
        64 * single,
        "CPU-s/iteration",
        lower_is_better=True,
    )


if __name__ == "__main__":
    harness.main("games", measure)
