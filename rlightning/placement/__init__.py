"""Who sits where: pure functions from a cluster and the workers' requests to a plan. No Ray, no torch."""

from rlightning.placement.cluster import Cluster, Node
from rlightning.placement.plan import Bundle, Plan, Slot
from rlightning.placement.request import WorkerRequest
from rlightning.placement.strategies import Strategy, choose_strategy

__all__ = ["Bundle", "Cluster", "Node", "Plan", "Slot", "Strategy", "WorkerRequest", "choose_strategy"]
