"""From a name to an environment."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from envs.minigrid import board, family
from envs.minigrid import maps as text_maps
from envs.minigrid.babyai import go_to, open_doors, pick_up, put_next
from envs.minigrid.environment import MiniGrid
from envs.minigrid.layouts import (
    crossing,
    dist_shift,
    door_key,
    dynamic_obstacles,
    empty,
    fetch,
    four_rooms,
    go_to_door,
    go_to_object,
    key_corridor,
    lava_gap,
    locked_room,
    memory,
    multi_room,
    obstructed_maze,
    playground,
    put_near,
    red_blue_doors,
    unlock,
    unlock_pickup,
)
from envs.minigrid.observation import Lens
from envs.minigrid.state import Params

# One line per family: import its file above and list it here.
FAMILIES = (
    crossing.FAMILY,
    dist_shift.FAMILY,
    door_key.FAMILY,
    dynamic_obstacles.FAMILY,
    empty.FAMILY,
    fetch.FAMILY,
    four_rooms.FAMILY,
    go_to_door.FAMILY,
    go_to_object.FAMILY,
    key_corridor.FAMILY,
    lava_gap.FAMILY,
    locked_room.FAMILY,
    memory.FAMILY,
    multi_room.FAMILY,
    obstructed_maze.FAMILY,
    playground.FAMILY,
    put_near.FAMILY,
    red_blue_doors.FAMILY,
    unlock.FAMILY,
    unlock_pickup.FAMILY,
    *go_to.FAMILIES,
    *open_doors.FAMILIES,
    *pick_up.FAMILIES,
    *put_next.FAMILIES,
)


# Ids of minigrid that are not here, without prefix and version, and why.
_ABSENT = {
    **dict.fromkeys(
        [
            *("GoToSeq", "GoToSeqS5R2", "MoveTwoAcrossS5N2", "MoveTwoAcrossS8N9"),
            *("Synth", "SynthS5R2", "SynthLoc", "SynthSeq"),
            *("MiniBossLevel", "BossLevel", "BossLevelNoUnlock"),
        ],
        "it can set over 100 000 missions, too many for the table of texts that "
        "State.mission points into",
    ),
    **dict.fromkeys(
        ["PutNextS5N2Carrying", "PutNextS6N3Carrying", "PutNextS7N4Carrying"],
        "minigrid's own first observation of it shows the carried object still lying",
    ),
    **dict.fromkeys(
        [
            *("WFC-MazeSimple", "WFC-DungeonMazeScaled", "WFC-RoomsFabric"),
            *("WFC-ObstaclesBlackdots", "WFC-ObstaclesAngular", "WFC-ObstaclesHogs3"),
        ],
        "its levels come from wave-function collapse with restarts, on the host; "
        "envs.from_grids takes boards that you generated with it",
    ),
}


def registered() -> tuple[str, ...]:
    """All ids that `make` takes, sorted."""
    return tuple(sorted(_by_id()))


def make(
    name: str,
    *,
    obs: str = "symbolic_partial",
    view_size: int = 7,
    tile_size: int = 8,
    auto_reset: str = "same_step",
    reward_mode: str = "minigrid",
    **overrides: Any,
) -> tuple[MiniGrid, Params]:
    """The environment registered under an id, and its default parameters.

    Args:
      name: such as "MiniGrid-DoorKey-8x8-v0"; prefix and version 0 may be left out,
        and "Navix-" ids are understood (docs/envs.md has the table).
      obs: what the agent sees; a name in `envs.minigrid.observation.OBSERVATIONS`.
      view_size: side of the partial view, odd.
      tile_size: pixels per cell of the picture observations.
      auto_reset: "same_step", "next_step" or "disabled".
      reward_mode: "minigrid" (1 - 0.9 t / T) or "sparse1" (1 for solving the task).
      **overrides: fields of the family's config, such as `max_steps` or
        `see_through_walls`.

    Raises:
      ValueError: for an unknown id, with the closest ones, or an unknown option.

    >>> env, params = make("MiniGrid-Empty-8x8-v0")
    >>> env.num_actions, env.observation_space(params).shape
    (7, (7, 7, 3))
    """
    full = _resolve(name)
    made, config = _by_id()[full]
    known = {field.name for field in dataclasses.fields(config)}
    for option in overrides:
        if option not in known:
            raise ValueError(
                f"{option}={overrides[option]!r} is no option of {full}"
                + _suggest(option, known | _OPTIONS)
            )
    config = dataclasses.replace(config, **overrides)
    return from_family(
        made,
        config,
        name=full,
        obs=obs,
        view_size=view_size,
        tile_size=tile_size,
        auto_reset=auto_reset,
        reward_mode=reward_mode,
    )


_OPTIONS = {"obs", "view_size", "tile_size", "auto_reset", "reward_mode"}


def from_family(
    made: family.Family,
    config: family.Config,
    *,
    name: str = "custom",
    obs: str = "symbolic_partial",
    view_size: int = 7,
    tile_size: int = 8,
    auto_reset: str = "same_step",
    reward_mode: str = "minigrid",
) -> tuple[MiniGrid, Params]:
    """The environment of a family of your own; the options are those of `make`."""
    env = MiniGrid(
        name=name,
        family=made,
        config=config,
        lens=Lens(
            width=config.width,
            height=config.height,
            see_through_walls=config.see_through_walls,
            view_size=view_size,
            tile_size=tile_size,
            missions=made.missions(config),
        ),
        obs=obs,
        auto_reset=auto_reset,
        reward_mode=reward_mode,
    )
    return env, env.default_params


def from_grids(
    grids: Any,
    agents: Any,
    *,
    max_steps: int,
    missions: Sequence[str] = ("get to the green goal square",),
    box_contents: Sequence[Any] | None = None,
    see_through_walls: bool = False,
    **options: Any,
) -> tuple[MiniGrid, Params]:
    """An environment with the base rules on boards of your own, drawn uniformly.

    Args:
      grids: uint8 `[K, W, H, 3]`, MiniGrid's (object, color, state) codes.
      agents: int `[K, 3]`, x, y and direction of each start.
      max_steps: time limit.
      missions: one text for all boards, or one per board.
      box_contents: per board, rows (x, y, object, color, state).
      see_through_walls: whether walls and shut doors do not block the view.
      **options: those of `make`.

    Raises:
      ValueError: if the boards, agents and texts do not fit together.
    """
    grids, agents = np.asarray(grids), np.asarray(agents)
    if grids.ndim != 4 or grids.shape[-1] != 3 or agents.shape != (len(grids), 3):
        raise ValueError(
            "grids must be [K, W, H, 3] and agents [K, 3] with one K; got shapes "
            f"{grids.shape} and {agents.shape}"
        )
    missions = tuple(missions)
    if len(missions) not in (1, len(grids)):
        raise ValueError(
            f"missions must be one text, or one for each of the {len(grids)} boards; "
            f"got {len(missions)}"
        )
    if box_contents is not None and len(box_contents) != len(grids):
        raise ValueError(
            f"box_contents must have one list for each of the {len(grids)} boards; "
            f"got {len(box_contents)}"
        )
    _, width, height, _ = grids.shape
    config = family.Config(width, height, max_steps, see_through_walls)
    blank = family.Family(
        generate=lambda key, config: family.Level(
            board.walled(width, height), board.position(1, 1), jnp.int32(0)
        ),
        missions=lambda config: missions,
        ids={},
    )
    env, _ = from_family(blank, config, **options)
    starts = [
        env.set_state(grid, agent, box_contents=contents)
        for grid, agent, contents in zip(
            grids, agents, box_contents or [()] * len(grids), strict=True
        )
    ]
    packed = np.stack([np.asarray(start.grid) for start in starts])

    def generate(key, config):
        k = board.between(key, 0, len(packed) - 1)
        agent = jnp.asarray(agents, jnp.int32)[k]
        mission = k if len(missions) > 1 else jnp.int32(0)
        return family.Level(jnp.asarray(packed)[k], agent[:2], agent[2], mission)

    return from_family(dataclasses.replace(blank, generate=generate), config, **options)


def from_ascii(
    maps: str | Sequence[str],
    *,
    max_steps: int,
    legend: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[MiniGrid, Params]:
    """An environment with the base rules on maps of your own, drawn uniformly.

    Args:
      maps: one map or several of one size; see `envs.minigrid.maps`.
      max_steps: time limit.
      legend: meanings of further characters, as in {"k": "yellow key"}.
      **options: those of `from_grids`.

    Raises:
      ValueError: if a map cannot be read, or the maps differ in size.

    >>> from_ascii("#####\\n#>.G#\\n#####", max_steps=9)[0].config.width
    5
    """
    boards = [
        text_maps.read(m, legend) for m in ([maps] if isinstance(maps, str) else maps)
    ]
    sizes = sorted({board.grid.shape[:2] for board in boards})
    if len(sizes) != 1:
        raise ValueError(f"maps must be one or more, all of one size; got {sizes}")
    grids, agents, contents = zip(*boards, strict=True)
    return from_grids(
        np.stack(grids),
        np.array(agents),
        max_steps=max_steps,
        box_contents=contents,
        **options,
    )


@functools.cache
def _by_id() -> dict[str, tuple[family.Family, Any]]:
    return {
        name: (made, config) for made in FAMILIES for name, config in made.ids.items()
    }


def _resolve(name: str) -> str:
    known = registered()
    bare = _from_navix(name) if name.startswith("Navix-") else name
    for prefix in ("", "MiniGrid-", "BabyAI-"):
        for full in (f"{prefix}{bare}", f"{prefix}{bare}-v0"):
            if full in known:
                return full
    reason = _ABSENT.get(re.sub("^(MiniGrid|BabyAI)-", "", bare).removesuffix("-v0"))
    if reason is not None:
        raise ValueError(f"{name!r} is left out on purpose: {reason}")
    raise ValueError(f"unknown environment id {name!r}" + _suggest(name, known))


def _from_navix(name: str) -> str:
    """The id without prefix whose levels are those of a navix id.

    navix orders some names otherwise, and gives version 0 to levels that are
    MiniGrid's version 1.
    """
    bare = name.removeprefix("Navix-")
    bare = re.sub(r"^(Dynamic-Obstacles)-(\d+x\d+)-Random", r"\1-Random-\2", bare)
    bare = bare.replace("DoorKey-Random-", "DoorKey-")
    renewed = r"^(MultiRoom-N4-S5|ObstructedMaze-(?:2Dlhb|1Q|2Q|Full))-v0$"
    return re.sub(renewed, r"\1-v1", bare)


def _suggest(name: str, known) -> str:
    """Close matches; prefix and version are ignored while comparing."""

    def bare(text: str) -> str:
        text = re.sub("^(MiniGrid|Navix|BabyAI)-", "", text)
        return text.rsplit("-v", 1)[0]

    if name.startswith("BabyAI-"):
        known = [k for k in known if k.startswith("BabyAI-")]
    names = {bare(k).lower(): k for k in sorted(known)}
    close = difflib.get_close_matches(bare(name).lower(), names, n=4, cutoff=0.5)
    if not close:
        return (
            "; envs.registered() lists the ids"
            if len(names) > 20
            else ("; choose from " + ", ".join(sorted(known)))
        )
    return "; did you mean " + " or ".join(names[match] for match in close) + "?"
