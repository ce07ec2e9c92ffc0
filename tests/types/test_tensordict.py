"""tensordict comes without torch's compiler, and what it has to tell the compiler is not lost."""

import subprocess
import sys

import pytest

from tests.architecture.source import ROOT

COMPILES = """
import sys, torch
from rlightning.types.tensordict import TensorDict, tell_compiler
assert "torch._dynamo" not in sys.modules
tell_compiler()

@torch.compile(backend="eager", fullgraph=True)
def add_one(data):
    return torch.vmap(lambda row: row["a"] + 1)(data)

print(add_one(TensorDict(a=torch.arange(3), batch_size=[3])).tolist())
"""


@pytest.mark.slow
def test_functions_of_tensordict_compile_into_one_graph_once_the_compiler_was_told():
    outcome = subprocess.run([sys.executable, "-c", COMPILES], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert outcome.stdout == "[1, 2, 3]\n", outcome.stderr
