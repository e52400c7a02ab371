"""Mutated launches: each is accepted, or told with field, value, origin, reason and fix; none ends in a traceback.

A few here; `make fuzz` runs 1,000.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniverl.compiler import profiles
from miniverl.compiler import source as sources
from miniverl.compiler.lower import Compiled, compile_launch, compile_source
from miniverl.engine.problem import Problems

pytestmark = pytest.mark.slow

VERL = "0.9.0"
EXAMPLES = int(os.environ.get("MINIVERL_FUZZ", "60"))
LAUNCHES = sorted(path.name.removesuffix(".yaml") for path in sources.LAUNCHES.iterdir())
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.lists(st.one_of(st.integers(-3, 3), st.text(max_size=3)), max_size=3),
    st.sampled_from([0, 1, -1, 2**53, 1e-320, "", "null", "1_2", "<your model>", "???", [], {}]),
)
MODEST = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def is_told(compiled: Compiled) -> bool:
    """An answer that a person can act on."""
    told = all(one.field and one.origin and one.reason and one.fix for one in compiled.problems)
    return told and (compiled.status == "accepted") == (not compiled.problems)


def is_answered(launch: str, override: str) -> bool:
    try:
        return is_told(compile_launch(launch, [override]))
    except Problems as refused:
        return all(one.field and one.origin and one.reason and one.fix for one in refused.problems)


@pytest.fixture(scope="module")
def launches() -> Mapping[str, sources.Source]:
    def composed(name: str) -> sources.Source:
        launch = sources.launch(name)
        overrides = sources.numbered(launch.overrides)
        return sources.compose(launch.config_name, overrides, version=VERL)

    return {name: composed(name) for name in LAUNCHES}


@MODEST
@given(data=st.data())
def test_any_value_in_any_leaf_is_judged(data, launches, bound, unbound):
    source = launches[data.draw(st.sampled_from(LAUNCHES))]
    fields = data.draw(st.lists(st.sampled_from(sorted(source.leaves)), min_size=1, max_size=4))
    changes: dict[str, Any] = {field: data.draw(VALUES) for field in fields}
    mutated = replace(source, leaves={**source.leaves, **changes})
    bindings = data.draw(st.sampled_from([bound, unbound]))
    profile = profiles.named(data.draw(st.sampled_from([None, "verl-rl-v0.9-single-gpu-v5"])))
    assert is_told(compile_source(mutated, bindings, profile))


@settings(MODEST, max_examples=max(8, EXAMPLES // 20))
@given(data=st.data())
def test_any_override_on_top_of_a_launch_is_answered(data):
    name = data.draw(st.sampled_from(LAUNCHES))
    key = data.draw(
        st.one_of(
            st.sampled_from(sorted(sources.defaults("ppo_trainer", version=VERL))),
            st.text(max_size=20),
            st.from_regex(re.compile(r"[+~]{0,2}[a-z@./_]{1,20}"), fullmatch=True),
        )
    )
    value = data.draw(st.one_of(st.text(max_size=20), VALUES.map(str)))
    if "\0" in key + value or not (key + value).isprintable():
        return
    assert is_answered(f"launch:{name}", f"{key}={value}")
