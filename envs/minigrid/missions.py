"""Mission texts as numbers: word indices and one-hot characters.

Both are tables over the finitely many missions of an environment, made on the host and
indexed by `State.mission` inside the program.

Source: Farama-Foundation/Minigrid, wrappers.py (`DictObservationSpaceWrapper`,
`FlatObsWrapper`).
"""

import functools
import re

import numpy as np

# Index 0 pads. The order is MiniGrid's; words of our own would go to the end.
VOCABULARY = tuple(
    "red green blue yellow purple grey "
    "unseen empty wall floor box key ball door goal agent lava "
    "pick avoid get find put use open go fetch reach unlock traverse "
    "up the a at , square and then to of rooms near opening must you matching end "
    "hallway object from room maze "
    "next after your left right in front behind on".split()
)
MINIGRID_WORDS = 51  # the words after these are for BabyAI
MAX_WORDS = 50
MAX_CHARACTERS = 96
ALPHABET = "abcdefghijklmnopqrstuvwxyz ,"


def tokens(text: str) -> np.ndarray:
    """int32 `[50]`: position of each word in `VOCABULARY`, from 1; commas are words.

    Raises:
      ValueError: for a word outside the vocabulary, or too many of them.
    """
    words = re.findall(r"[^\s,]+|,", text.lower())
    unknown = [word for word in words if word not in VOCABULARY]
    if unknown or len(words) > MAX_WORDS:
        raise ValueError(
            f"mission {text!r} has {len(words)} words (at most {MAX_WORDS}), of which "
            f"{unknown} are not in envs.minigrid.missions.VOCABULARY"
        )
    encoded = np.zeros(MAX_WORDS, np.int32)
    encoded[: len(words)] = [VOCABULARY.index(word) + 1 for word in words]
    return encoded


def characters(text: str) -> np.ndarray:
    """uint8 `[96 * 28]`: each character one-hot over letters, space and comma.

    Raises:
      ValueError: for another character, or too many of them.
    """
    text = text.lower()
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown or len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"mission {text!r} has {len(text)} characters (at most {MAX_CHARACTERS}), "
            f"of which {unknown} are neither letters, spaces nor commas"
        )
    encoded = np.zeros((MAX_CHARACTERS, len(ALPHABET)), np.uint8)
    encoded[np.arange(len(text)), [ALPHABET.index(c) for c in text]] = 1
    return encoded.reshape(-1)


@functools.cache
def token_table(missions: tuple[str, ...]) -> np.ndarray:
    """`tokens` of every mission, `[missions, 50]`."""
    return np.stack([tokens(text) for text in missions])


def largest_token(missions: tuple[str, ...]) -> int:
    """Upper bound of the tokens: MiniGrid's own, unless the missions need more."""
    return max(MINIGRID_WORDS, int(token_table(missions).max()))


@functools.cache
def character_table(missions: tuple[str, ...]) -> np.ndarray:
    """`characters` of every mission, `[missions, 96 * 28]`."""
    return np.stack([characters(text) for text in missions])
