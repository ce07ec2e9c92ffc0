"""A stretch of a run: ``python -m tests.parity.stretch CONFIG OUT UNTIL [CHECKPOINT]``.

Runs to an epoch, from the start or from a checkpoint. OUT gets ``report.json`` and ``state``, a checkpoint of the end.
"""

import json
import sys
from pathlib import Path

import yaml

import tests.engine.doubles  # noqa: F401 (registers what the configurations name)
from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import save_state
from rlightning.commands.states import digest, leaves
from rlightning.config import Config


def run(config, until, out=None, checkpoint=None):
    """Run; returns what ``report.json`` holds: metrics by epoch without times, counters, and digests of all that is."""
    rows = []
    with assemble(config) as engine:
        if checkpoint:
            engine.resume(checkpoint)
        engine.start()
        while engine.epoch < until:
            metrics = engine.run_epoch()
            rows.append({name: value for name, value in metrics.items() if not name.startswith("time/")})
        state = engine.get_state()
        del state["spec"]  # the options, which differ between ways of doing the same
        report = {
            "rows": rows,
            "epoch": engine.epoch,
            "env_steps": engine.env_steps,
            "digests": {path: digest(leaf) for path, leaf in leaves(state)},
            "stale": [str(mismatch) for mismatch in engine.policy_group.compare_weights(0.0)],
        }
    if out is not None:
        save_state(out / "state", state)
        (out / "report.json").write_text(json.dumps(report))
    return report


if __name__ == "__main__":
    config_path, out, until, *checkpoint = sys.argv[1:]
    config = Config.model_validate(yaml.safe_load(Path(config_path).read_text()))
    run(config, int(until), Path(out), *checkpoint)
