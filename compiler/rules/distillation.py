"""`distillation`: learning from a teacher's log-probabilities. Disabled, nothing reads this section.

Sources: verl/trainer/distillation/losses.py:43-300, verl/workers/config/distillation.py.
"""

from miniverl.compiler.rule import Rule, behind, section
from miniverl.compiler.rules.repeated import keeps_class, off
from miniverl.compiler.rules.switches import distils

_REST = behind(
    "*",
    distils,
    off="not read: this launch has no teacher",
    on="waits for the teacher, which is not run here (distillation.enabled)",
)

RULES: tuple[Rule, ...] = (
    section(
        "distillation.*",
        off(
            "distillation.enabled",
            False,
            what="learning from a teacher",
            because="no teacher scores responses here yet",
            fix="Set distillation.enabled=False",
        ),
        keeps_class("*._target_"),
        _REST,
    ),
)

APPENDED: tuple[Rule, ...] = tuple(
    Rule(f"distillation.{name}", _REST.judge)
    for name in (
        "teacher_models.*",  # further teachers, each under a name of the user's
        "distillation_loss.use_chunked_topk",
        "distillation_loss.chunked_topk_chunk_size",
    )
)
