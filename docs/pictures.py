"""Draw the pictures of environments: `python docs/pictures.py` writes them into docs/images."""

from pathlib import Path

import gymnasium as gym
from PIL import Image

import lang_envs  # noqa: F401

IMAGES = Path(__file__).parent / "images"
PLAYED = {
    "kitchen": """Overcooked-tomato-lettuce-salad-v0
    get the tomato, go to the first cutting board, chop, get the lettuce, go to the second cutting board, chop""",
    "household": """VirtualHome-entertainment-v0
    walk to the living room, walk to the TV, turn on the TV, walk to the kitchen, walk to the chips, grab the chips""",
}
"""For each picture the environment and the actions before it."""

if __name__ == "__main__":
    for name, played in PLAYED.items():
        env_id, actions = played.split("\n")
        env = gym.make(env_id, interface="text", render_mode="rgb_array")
        env.reset(seed=0)
        for action in actions.strip().split(", "):
            *_, info = env.step(action)
            assert info["action_valid"], action
        Image.fromarray(env.render()).save(IMAGES / f"{name}.png", optimize=True)
