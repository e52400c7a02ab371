"""Who answers a prompt: agents, their turns and tools, under `actor_rollout_ref.rollout`.

A response here is one turn of the policy. Sources: verl/trainer/ppo/v1/agent_loop_tq.py:75-85,
verl/experimental/agent_loop/agent_loop.py:535-570, verl/experimental/agent_loop/tool_agent_loop.py:105-120.
"""

from miniverl.compiler.rule import Class, Rule, dead, notes, requires, section
from miniverl.compiler.rules.repeated import keeps_class, off

_ROLLOUT = "actor_rollout_ref.rollout"
_AGENT = f"{_ROLLOUT}.agent"
_TURNS = f"{_ROLLOUT}.multi_turn"

AGENTS: tuple[Rule, ...] = (
    keeps_class(f"{_AGENT}._target_"),
    notes(
        f"{_AGENT}.num_workers",
        Class.DISTRIBUTED,
        "how many processes ask upstream's servers; there is one here",
    ),
    requires(
        f"{_AGENT}.default_agent_loop",
        "single_turn_agent",
        classification=Class.CONFORMANT,
        reason="a prompt is answered once",
        label="own sampler",
        otherwise=Class.NOT_IMPLEMENTED,
        because="a response is one turn here: no agent calls tools or is asked again",
        fix=f"Set {_AGENT}.default_agent_loop=single_turn_agent",
    ),
    off(
        f"{_AGENT}.agent_loop_config_path",
        None,
        what="agents of the user's",
        because="a module named in a launch is never imported here",
        fix=f"Set {_AGENT}.agent_loop_config_path=null",
    ),
    section(
        f"{_AGENT}.custom_async_server.*",
        keeps_class("*._target_"),
        off(
            "*",
            None,
            what="an inference server of the user's",
            because="a module named in a launch is never imported here",
            fix=f"Set {_AGENT}.custom_async_server.path and .name to null",
        ),
    ),
    section(
        f"{_TURNS}.*",
        keeps_class("*._target_"),
        off(
            f"{_TURNS}.enable",
            False,
            what="conversations of several turns",
            because="a response is one turn here; upstream would want agent.default_agent_loop as well",
            fix=f"Set {_TURNS}.enable=False",
        ),
        *(
            off(
                f"{_TURNS}.{name}",
                None,
                what="tools that a response may call",
                because="a response calls no tools here, and their descriptions would lengthen prompts",
                fix=f"Set {_TURNS}.{name}=null",
            )
            for name in ("tool_config_path", "function_tool_path")
        ),
        *(
            dead(
                f"{_TURNS}.{name}", "nothing reads it: the default trainer has its own agent loops"
            )
            for name in (
                "use_inference_chat_template",
                "tokenization_sanity_check_mode",
                "num_repeat_rollouts",
            )
        ),
        dead("*", "not read: only the tool-calling agent has it"),
    ),
)
