"""The data that flow between the rooms."""

from rlightning.types.batch import BatchedData
from rlightning.types.env import EnvMeta, EnvRet
from rlightning.types.policy import PolicyResponse
from rlightning.types.tokens import TokenIds
from rlightning.types.tree import Tree

__all__ = ["BatchedData", "EnvMeta", "EnvRet", "PolicyResponse", "TokenIds", "Tree"]
