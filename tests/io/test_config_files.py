"""A config survives the disk exactly, or the field that does not is named."""

import dataclasses
import enum
import json
import pathlib
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxlab.io import config as config_io


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Sgd:
    lr: float = 0.1


@dataclasses.dataclass(frozen=True)
class Adam:
    lr: float = 0.1
    beta: float = 0.9


@dataclasses.dataclass(frozen=True)
class Config:
    name: str = "x"
    steps: int = 3
    gamma: float = 0.99
    flag: bool = False
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, str] = (1, "a")
    kind: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    optimizer: Sgd | Adam = Sgd()
    inner: Sgd = Sgd()
    maybe: float | None = None
    folder: pathlib.Path = pathlib.Path("data")
    table: dict[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.steps < 0:
            raise ValueError(f"steps={self.steps} must not be negative")


numbers = st.floats(allow_nan=False)
configs = st.builds(
    Config,
    name=st.text(),
    steps=st.integers(0, 2**70),
    gamma=numbers,
    flag=st.booleans(),
    sizes=st.lists(st.integers()).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    kind=st.sampled_from(["a", "b", 3]),
    colour=st.sampled_from(Colour),
    optimizer=st.builds(Sgd, numbers) | st.builds(Adam, numbers, numbers),
    inner=st.builds(Sgd, numbers),
    maybe=st.none() | numbers,
    folder=st.sampled_from([pathlib.Path("a"), pathlib.Path("/b/c")]),
    table=st.dictionaries(st.text(), st.integers()),
)


@settings(max_examples=200, deadline=None)
@given(configs)
def test_what_is_written_is_what_is_read(config):
    data = json.loads(json.dumps(config_io.to_json(config)))
    assert config_io.from_json(Config, data) == config
    assert config_io.difference(data, config_io.to_json(config)) == []


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([f.name for f in dataclasses.fields(Config)]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=4,
        ),
    )
)
def test_any_json_gives_a_config_or_a_value_error(data):
    try:
        config = config_io.from_json(Config, data)
    except ValueError:
        return
    assert isinstance(config, Config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"stepz": 3}, "unknown config field stepz; Config has name, steps"),
        ({"inner": {"l": 1.0}}, "unknown config field inner.l"),
        ({"steps": "3"}, "config field steps='3' must be of type int"),
        ({"steps": True}, "steps=True must be of type int"),
        ({"steps": -1}, "steps=-1 must not be negative"),
        ({"kind": "c"}, r"kind='c' must be one of \('a', 'b', 3\)"),
        ({"colour": "GREEN"}, "colour='GREEN' must be one of"),
        ({"pair": [1]}, r"pair=\[1\] must be 2 values"),
        ({"sizes": [1, "2"]}, "sizes.1='2' must be of type int"),
        ({"optimizer": {"class": "Lion"}}, "optimizer='Lion' must be a class"),
        ([], "config field config=.* must be of type dict"),
    ],
)
def test_a_wrong_value_is_refused_by_name(data, message):
    with pytest.raises(ValueError, match=message):
        config_io.from_json(Config, data)


def test_a_missing_field_takes_its_default():
    assert config_io.from_json(Config, {"steps": 7}) == Config(steps=7)


def test_an_int_stays_an_int_and_a_float_field_takes_one():
    assert type(config_io.from_json(Config, {"gamma": 1}).gamma) is float
    assert type(config_io.from_json(Config, {"maybe": 1}).maybe) is float


def test_two_classes_with_the_same_fields_are_told_apart():
    @dataclasses.dataclass(frozen=True)
    class Either:
        member: Any = None

    Either.__annotations__["member"] = Sgd | Adam
    data = config_io.to_json(Config(optimizer=Adam(lr=1.0, beta=0.0)))
    assert data["optimizer"] == {"class": "Adam", "lr": 1.0, "beta": 0.0}


def test_the_difference_names_every_field_once():
    a = config_io.to_json(Config(steps=1, inner=Sgd(0.5)))
    b = config_io.to_json(Config(steps=2, inner=Sgd(0.25)))
    assert config_io.difference(a, b) == [
        "steps: 1 there, 2 here",
        "inner.lr: 0.5 there, 0.25 here",
    ]
    assert config_io.difference({"x": 1}, {}) == ["x: 1 there, absent here"]


def test_nan_is_no_difference_from_itself():
    nan = config_io.to_json(Config(gamma=float("nan")))
    assert config_io.difference(nan, nan) == []


def test_a_value_json_cannot_carry_is_named():
    with pytest.raises(TypeError, match="config field table.a=.* has type object"):
        config_io.to_json(Config(table={"a": object()}))  # pyright: ignore


def test_writing_leaves_no_half_file(tmp_path):
    config_io.write(tmp_path / "config.json", Config())
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    assert config_io.read(tmp_path / "config.json", Config) == Config()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        config_io.read(tmp_path / "config.json", Config)
