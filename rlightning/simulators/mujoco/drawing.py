"""Fast rendering of MuJoCo worlds. MuJoCo is imported on the first frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlightning.errors import MissingDependency

if TYPE_CHECKING:
    from rlightning.simulators.mujoco.task import TaskOptions


def prepare_to_draw(env: Any) -> None:
    """Set the camera to follow the robot, and turn off shadows, reflections and antialiasing.

    A camera of the model that tracks a body is used, "track" first. Without such a camera, the free camera follows the
    root body of a robot that can move away. A camera that the user chose is kept. Without a GPU, the effects that are
    turned off take ten times as long as the rest of a frame.
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
    if renderer.camera_id not in (None, -1):
        return
    camera = find_tracking_camera(env.model)
    if camera is not None:
        renderer.camera_id = camera
        return
    root = find_root(env.model)
    if root is not None and "lookat" not in (renderer.default_cam_config or {}):
        viewer.cam.type, viewer.cam.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, root
        # A number would make it a free or a fixed camera again.
        renderer.camera_id = None


def find_tracking_camera(model: Any) -> int | None:
    """Return the index of a camera that moves with a body, "track" before others; None without one."""
    import mujoco

    kinds = mujoco.mjtCamLight
    moving = np.isin(model.cam_mode, (kinds.mjCAMLIGHT_TRACK, kinds.mjCAMLIGHT_TRACKCOM)) & (model.cam_bodyid > 0)
    named = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if named >= 0:
        return int(named)
    return int(np.flatnonzero(moving)[0]) if moving.any() else None


def find_root(model: Any) -> int | None:
    """Return the index of the first body with joints if its joints permit translation; None otherwise."""
    import mujoco

    if not model.njnt:
        return None
    root = int(model.jnt_bodyid[0])
    kinds = model.jnt_type[model.jnt_bodyid == root]
    return root if np.isin(kinds, (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_SLIDE)).any() else None


class Picture:
    """Renders one world.

    Attributes:
        model: The model of the world.
        data: The state to render; the caller writes into it.
        mujoco_renderer: Gymnasium's renderer.

    Raises:
        MissingDependency: If a package that rendering needs is not installed.
    """

    def __init__(self, model: Any, options: TaskOptions, camera: Mapping[str, Any] | None) -> None:
        import mujoco

        try:
            from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingDependency(f"drawing needs a package: {error}") from error
        self.model, self.data = model, mujoco.MjData(model)
        # The offscreen buffer has this size; the model's may be smaller.
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
        """Render ``data``, [height, width, 3] uint8."""
        return np.array(self.mujoco_renderer.render("rgb_array"))

    def close(self) -> None:
        """Release the renderer."""
        self.mujoco_renderer.close()  # type: ignore[no-untyped-call]
