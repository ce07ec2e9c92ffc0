"""The places of workers: pure functions from a cluster and the workers' requests to a plan. No Ray, no torch."""

from rlightning.placement.cluster import Cluster, Node
from rlightning.placement.plan import Plan, Reservation, Slot
from rlightning.placement.request import WorkerRequest
from rlightning.placement.strategies import Strategy, choose_strategy

__all__ = ["Cluster", "Node", "Plan", "Reservation", "Slot", "Strategy", "WorkerRequest", "choose_strategy"]
