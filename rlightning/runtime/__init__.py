"""Where code runs: handles to workers and futures of their results, the same for local and remote ones."""

from rlightning.runtime.collective import Call, collective_call
from rlightning.runtime.fast_channel import FastChannel, open_channels
from rlightning.runtime.future import Future, JointFuture, LocalFuture, gather, resolve, wait
from rlightning.runtime.handle import PartHandle, WorkerHandle, WorkerInfo, as_handle, share
from rlightning.runtime.in_process import InProcessWorker
from rlightning.runtime.location import own_location

__all__ = [
    "Call",
    "FastChannel",
    "Future",
    "InProcessWorker",
    "JointFuture",
    "LocalFuture",
    "PartHandle",
    "WorkerHandle",
    "WorkerInfo",
    "as_handle",
    "collective_call",
    "gather",
    "open_channels",
    "own_location",
    "resolve",
    "share",
    "wait",
]
