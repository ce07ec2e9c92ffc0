"""One item per env worker, in the order of the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(slots=True)
class BatchedData(Generic[T_co]):
    """Items by the env worker that they belong to.

    The items are results or futures of results: a batch can be passed on unopened.

    Attributes:
        env_ids: Id of the env worker of each item: its index in an ``EnvGroup``, else any hashable value.
        items: One item per id.
    """

    env_ids: Sequence[Any]
    items: Sequence[T_co]

    def __post_init__(self) -> None:
        if len(self.env_ids) != len(self.items):
            raise ValueError(f"{len(self.env_ids)} env ids for {len(self.items)} items")

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[tuple[Any, T_co]]:
        return iter(zip(self.env_ids, self.items, strict=True))

    def __getitem__(self, env_id: Any) -> T_co:
        return self.items[list(self.env_ids).index(env_id)]

    def ids(self) -> list[Any]:
        """Return the ids, in order."""
        return list(self.env_ids)

    def values(self) -> list[T_co]:
        """Return the items, in the order of their ids."""
        return list(self.items)
