"""One item per env worker, in the order of the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(slots=True)
class BatchedData(Generic[T_co]):
    """Items keyed by the env worker that they belong to.

    The items are results or futures of results: a batch can be passed on without being opened.

    Attributes:
        env_ids: Index of the env worker of each item.
        items: One item per id.
    """

    env_ids: Sequence[int]
    items: Sequence[T_co]

    def __post_init__(self) -> None:
        if len(self.env_ids) != len(self.items):
            raise ValueError(f"{len(self.env_ids)} env ids for {len(self.items)} items")

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[tuple[int, T_co]]:
        return iter(zip(self.env_ids, self.items, strict=True))

    def __getitem__(self, env_id: int) -> T_co:
        return self.items[list(self.env_ids).index(env_id)]
