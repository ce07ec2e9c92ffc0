"""Where code runs: handles to workers and futures of their results, the same for local and remote ones."""

from rlightning.runtime.future import Future, JointFuture, LocalFuture, gather, resolve, wait
from rlightning.runtime.handle import PartHandle, WorkerHandle, WorkerInfo, as_handle, share
from rlightning.runtime.in_process import InProcessWorker
from rlightning.runtime.line import Line, open_lines
from rlightning.runtime.place import own_place
from rlightning.runtime.together import Call, together

__all__ = [
    "Call",
    "Future",
    "InProcessWorker",
    "JointFuture",
    "Line",
    "LocalFuture",
    "PartHandle",
    "WorkerHandle",
    "WorkerInfo",
    "as_handle",
    "gather",
    "open_lines",
    "own_place",
    "resolve",
    "share",
    "together",
    "wait",
]
