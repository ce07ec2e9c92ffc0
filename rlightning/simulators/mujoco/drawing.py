"""Quick pictures of MuJoCo's worlds. MuJoCo is imported only to draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlightning.errors import MissingDependency

if TYPE_CHECKING:
    from rlightning.simulators.mujoco.task import TaskOptions


def prepare_to_draw(env: Any) -> None:
    """Let the camera follow the robot, and leave out shadows, reflections and smoothed edges.

    Without a GPU those take ten times as long as all the rest of a picture.
    """
    renderer = getattr(env, "mujoco_renderer", None)
    if renderer is None:
        return
    import mujoco

    # Read when the viewer is made.
    env.model.vis.quality.offsamples = 0
    viewer = renderer._get_viewer("rgb_array")
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        viewer.scn.flags[flag] = 0
    camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if renderer.camera_id in (None, -1) and camera >= 0:
        renderer.camera_id = camera


class Picture:
    """Draws one world.

    Attributes:
        model: Its model.
        data: Its state, to be written into.
        mujoco_renderer: Gymnasium's renderer.

    Raises:
        MissingDependency: If a package that drawing needs is not installed.
    """

    def __init__(self, model: Any, options: TaskOptions, camera: Mapping[str, Any] | None) -> None:
        import mujoco

        try:
            from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingDependency(f"drawing needs a package: {error}") from error
        self.model, self.data = model, mujoco.MjData(model)
        # Pictures are drawn into memory of this size; what the model has may be smaller.
        screen = model.vis.global_
        screen.offwidth, screen.offheight = max(screen.offwidth, options.width), max(screen.offheight, options.height)
        self.mujoco_renderer = MujocoRenderer(
            model,
            self.data,
            {
                name: np.array(value) if isinstance(value, list | tuple) else value
                for name, value in (camera or {}).items()
            },
            options.width,
            options.height,
            options.max_geom,
            options.camera_id,
            options.camera_name,
            options.visual_options,
        )
        prepare_to_draw(self)

    def draw(self) -> np.ndarray[Any, Any]:
        """Draw what ``data`` holds, [height, width, 3] uint8."""
        return np.array(self.mujoco_renderer.render("rgb_array"))

    def close(self) -> None:
        """Release the renderer."""
        self.mujoco_renderer.close()  # type: ignore[no-untyped-call]
