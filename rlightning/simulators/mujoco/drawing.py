"""Quick pictures of MuJoCo's worlds. MuJoCo is imported only to draw."""

from __future__ import annotations

from typing import Any


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
