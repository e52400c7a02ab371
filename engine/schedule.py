"""The learning rate over the run, as a factor on the recipe's rate. One tick per step, not per optimizer step.

Upstream: verl/utils/torch_functional.py:712 and :768, verl/workers/engine/fsdp/transformer_impl.py:484 (v0.9.0).
"""

import math

from miniverl.engine.recipe import LearningRateSchedule


def factor(step: int, schedule: LearningRateSchedule) -> float:
    """What the learning rate is multiplied with in `step`, counted from 0.

        warm-up   step / warmup_steps               while step < warmup_steps
        constant  1
        cosine    max(min_ratio, (1 + min_ratio) / 2 + (1 - min_ratio) / 2 * cos(2 pi num_cycles progress))
                  progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)

    With a warm-up the factor of step 0 is 0: that whole step changes no weight, as upstream. Cosine counts steps
    from 1 unless `zero_indexed`; constant always counts from 0.
    """
    if schedule.kind == "cosine" and not schedule.zero_indexed:
        step += 1
    if step < schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    steps_left = max(1, schedule.total_steps - schedule.warmup_steps)
    progress = (step - schedule.warmup_steps) / steps_left
    middle, reach = (1 + schedule.min_ratio) / 2, (1 - schedule.min_ratio) / 2
    return max(
        schedule.min_ratio,
        middle + reach * math.cos(2 * math.pi * schedule.num_cycles * progress),
    )
