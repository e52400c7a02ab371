"""A run's metrics as a run of Weights & Biases, in a folder: `wandb sync` sends it, and nothing here does.

The library would note the machine, its packages, the working tree and what is printed; all of that is off.
"""

import os
from pathlib import Path

os.environ["WANDB_ERROR_REPORTING"] = "false"  # read when it is imported

import wandb

from miniverl.bench.tracking import Tracked

PROJECT = "miniverl"
_SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "",
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def write(run: Tracked, folder: Path) -> None:
    """The recipe is the run's config. Times are those of the export."""
    folder.mkdir(parents=True, exist_ok=True)
    with wandb.init(
        config=dict(run.recipe),
        dir=folder,
        mode="offline",
        name=run.name,
        project=PROJECT,
        settings=wandb.Settings(**_SETTINGS),
    ) as written:
        for point in run.points:
            written.log(dict(point.values), step=point.step)
