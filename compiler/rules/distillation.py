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
        appended=(
            Rule("distillation.teacher_models.*", _REST.judge),  # more teachers, each with a name
            Rule("distillation.distillation_loss.*chunked_topk*", _REST.judge),
        ),
    ),
)
