"""What a checkpoint stores so that its policy can be built without the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlightning.checkpoint import load_state, locate, state_names
from rlightning.config import Config
from rlightning.engine.recorder import CheckpointFolder
from rlightning.errors import CheckpointError
from rlightning.types import EnvMeta
from rlightning.types.spaces import meta_to_state


def policy_spec(config: Config, env_meta: EnvMeta) -> dict[str, Any]:
    """Return options, modules and spaces: the state ``spec`` of a checkpoint."""
    return {
        "policy": config.policy.model_dump(mode="json"),
        "imports": list(config.imports),
        "seed": config.seed,
        "env_meta": meta_to_state(env_meta),
    }


def load_trained(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read the policies of a checkpoint, and what they were built for; None where an older version made it.

    Raises:
        CheckpointError: If it is damaged, or no checkpoint of a run.
    """
    names = ["policy", *({"spec"} & state_names(checkpoint))]
    states = load_state(checkpoint, names)
    return states["policy"], states.get("spec")


def find_checkpoint(source: Path | str, wanted: str = "best") -> Path:
    """Find a checkpoint of a run, or the one that ``source`` is.

    Args:
        source: Folder of a run, or of a checkpoint.
        wanted: Of a run: "best" (the last one where none was marked), "last", or the name or folder of a checkpoint.

    Raises:
        CheckpointError: If there is none.
    """
    folder = Path(source).expanduser().absolute()
    of_run = CheckpointFolder(folder / "checkpoints")
    if not of_run.path.is_dir():
        if not (locate(folder) / "manifest.json").is_file():
            raise CheckpointError(f"{folder} is neither the folder of a run nor that of a checkpoint")
        return locate(folder)
    if wanted in ("best", "last"):
        return (of_run.best() if wanted == "best" else None) or of_run.last()
    for path in (Path(wanted), of_run.path / wanted):
        if locate(path).is_dir():
            return path
    raise CheckpointError(f"there is no checkpoint {wanted!r}; {of_run.path} lists those of the run")
