"""Conversion of texts in observations to token ids of fixed length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning import registry
from rlightning.config import TextConfig
from rlightning.errors import ShapeError
from rlightning.types import Tree
from rlightning.types.tokens import TokenIds

_DEFAULT_LENGTH = 128
_BYTES = 256


class Tokenizer(ABC):
    """Converts a text to numbers; equal texts have equal ids. Registered by ``register("tokenizer", name)``.

    Attributes:
        vocabulary: Number of different ids, including 0, with which short texts are padded.
    """

    vocabulary: int

    @abstractmethod
    def __call__(self, text: str) -> Sequence[int]:
        """Return the ids of a text, each from 1 to ``vocabulary - 1``."""


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8: the byte plus 1."""

    vocabulary = _BYTES + 1

    def __call__(self, text: str) -> Sequence[int]:
        return [byte + 1 for byte in text.encode()]


def is_text(space: gym.Space[Any]) -> bool:
    """Whether the elements of a space are strings: ``Text``, and spaces of dtype str such as MiniGrid's."""
    return isinstance(space, gym.spaces.Text) or (
        getattr(space, "dtype", None) is not None and space.shape is None and np.dtype(space.dtype).kind == "U"
    )


class TextAsTokens(gym.ObservationWrapper[Any, Any, Any]):
    """Replaces the texts of an env's observations by token ids.

    Args:
        env: The env.
        config: The tokenizer and the number of ids.

    Raises:
        ConfigError: If there is no such tokenizer.
    """

    def __init__(self, env: gym.Env[Any, Any], config: TextConfig) -> None:
        super().__init__(env)
        self._tokenizer: Tokenizer = registry.lookup("tokenizer", config.tokenizer)()
        self._length = config.length
        self._is_bytes = isinstance(self._tokenizer, ByteTokenizer)
        self._texts = env.observation_space
        self.observation_space = self._space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Return an observation with token ids instead of texts."""
        return self._encode(observation, self._texts, self.observation_space, "")

    def _space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        if is_text(space):
            return TokenIds(self._length or self._longest(space), self._tokenizer.vocabulary)
        if isinstance(space, gym.spaces.Dict):
            return gym.spaces.Dict({key: self._space(part) for key, part in space.spaces.items()})
        if isinstance(space, gym.spaces.Tuple):
            return gym.spaces.Tuple(self._space(part) for part in space.spaces)
        return space

    def _longest(self, space: gym.Space[Any]) -> int:
        longest: int | None = getattr(space, "max_length", None)
        if longest is None or not self._is_bytes:
            return _DEFAULT_LENGTH
        characters = getattr(space, "character_set", ())
        return longest * max((len(character.encode()) for character in characters), default=1)

    def _encode(self, value: Tree, space: gym.Space[Any], wanted: gym.Space[Any], path: str) -> Tree:
        if space is wanted:
            return value
        if isinstance(space, gym.spaces.Dict) and isinstance(wanted, gym.spaces.Dict):
            texts = space.spaces.items()
            return {key: self._encode(value[key], part, wanted[key], f"{path}.{key}") for key, part in texts}
        if isinstance(space, gym.spaces.Tuple) and isinstance(wanted, gym.spaces.Tuple):
            parts = enumerate(zip(value, space.spaces, wanted.spaces, strict=True))
            return tuple(self._encode(each, part, aim, f"{path}[{i}]") for i, (each, part, aim) in parts)
        assert isinstance(wanted, TokenIds)
        if not isinstance(value, str):
            raise ShapeError(f"observation{path} is a {type(value).__name__}, and its space {space} is one of texts")
        return encoded(value, self._tokenizer, wanted.length, f"observation{path}")


def has_text(space: gym.Space[Any]) -> bool:
    """Whether a space or a part of it is one of texts."""
    parts = getattr(space, "spaces", ())
    return is_text(space) or any(has_text(part) for part in (parts.values() if isinstance(parts, dict) else parts))


def encoded(text: str, tokenizer: Tokenizer, length: int, what: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Convert a text to ids, [length] int32, padded with zeros.

    Raises:
        ShapeError: If the text has more ids; the message calls it ``what``.

    >>> encoded("hi", ByteTokenizer(), 4, "mission").tolist()
    [105, 106, 0, 0]
    """
    ids = tokenizer(text)
    if len(ids) > length:
        raise ShapeError(f"{what} has {len(ids)} token ids, {length} at most expected; raise env.text.length: {text!r}")
    row = np.zeros(length, np.int32)
    row[: len(ids)] = ids
    return row


def encode_rows(texts: Sequence[str], config: TextConfig, what: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Convert a text per sub-env to ids, [N, L] int32.

    Raises:
        ConfigError: If there is no such tokenizer.
        ShapeError: If a text has more than L ids.
    """
    tokenizer: Tokenizer = registry.lookup("tokenizer", config.tokenizer)()
    length = config.length or _DEFAULT_LENGTH
    return np.stack([encoded(text, tokenizer, length, f"{what} of sub-env {i}") for i, text in enumerate(texts)])
