"""The import report: the published shape, computed digests, and nothing of the machine it was made on."""

import hashlib
import json
from dataclasses import replace

import rfc8785

from miniverl.compiler import profiles
from miniverl.compiler.judge import Table
from miniverl.compiler.lower import seen_by_rules
from miniverl.compiler.rule import Context
from miniverl.engine import recipe as recipes

PUBLISHED_KEYS = {
    "algorithm",
    "executable",
    "field_classification",
    "generated_path",
    "generated_recipe_sha256",
    "generated_recipe_validated",
    "input_contract",
    "local_lowering",
    "profile",
    "profile_field_rules_sha256",
    "report_path",
    "required_user_input",
    "schema_version",
    "source_config_sha256",
    "source_verl",
    "status",
    "unresolved_fields",
    "unsupported_fields",
}
PUBLISHED_ROW = {
    "classification",
    "local_target",
    "reason",
    "resolution_status",
    "source_value",
    "upstream_field",
}


def test_it_has_every_key_of_the_published_report(compiled):
    report = compiled().report
    assert set(report) >= PUBLISHED_KEYS
    assert all(set(row) >= PUBLISHED_ROW for row in report["field_classification"])
    assert report["source_verl"] == {
        "commit": "483b8a009ba3a97563edee3a19887e4862b8094a",
        "repository": "https://github.com/verl-project/verl",
        "tag": "v0.9.0",
    }


def test_an_accepted_launch_says_so_in_every_place(compiled):
    result = compiled()
    report = result.report
    assert (report["status"], report["semantics"], report["executable"]) == (
        "accepted",
        "accepted",
        True,
    )
    assert report["execution"] == {"status": "executable"}
    written = recipes.dumps(result.recipe).encode()
    assert report["generated_recipe_sha256"] == hashlib.sha256(written).hexdigest()
    assert report["generated_recipe_validated"] is True
    assert {row["resolution_status"] for row in report["field_classification"]} == {"resolved"}


def test_a_rejected_launch_lists_what_is_unsupported(compiled):
    report = compiled({"algorithm.adv_estimator": "remax"}).report
    assert (report["status"], report["executable"]) == ("rejected", False)
    assert report["unsupported_fields"] == ["algorithm.adv_estimator"]
    assert report["generated_recipe_sha256"] is None
    assert [problem["field"] for problem in report["problems"]] == ["algorithm.adv_estimator"]
    assert set(report["problems"][0]) == {"field", "value", "origin", "reason", "fix"}


def test_rows_are_sorted_and_there_is_one_for_each_leaf(compiled, grpo):
    report = compiled().report
    fields = [row["upstream_field"] for row in report["field_classification"]]
    assert fields == sorted(grpo.leaves)
    lowered = [(row["source_field"], row["kind"]) for row in report["local_lowering"]]
    assert lowered == sorted(lowered)


def test_it_is_json_and_holds_no_path(compiled, bound):
    text = json.dumps(compiled().report, sort_keys=True, allow_nan=False)
    assert str(bound.train.path) not in text
    assert "/home/user/data/gsm8k/train.parquet" in text  # the launch's own words


def test_one_device_in_place_of_many_and_the_own_sampler_are_rows(compiled):
    rows = {row["source_field"]: row for row in compiled().report["local_lowering"]}
    assert rows["actor_rollout_ref.rollout.tensor_model_parallel_size"] == {
        "kind": "distributed_only",
        "local_value": 1,
        "source_field": "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "source_value": 2,
    }
    assert rows["actor_rollout_ref.rollout.name"]["local_value"] == "own sampler"
    assert rows["actor_rollout_ref.rollout.dtype"]["local_value"] == "float32"


def test_the_profiles_identity_is_a_digest_over_its_other_fields(compiled):
    identity = dict(compiled().report["profile_identity"])
    digest = identity.pop("digest")
    assert digest == hashlib.sha256(rfc8785.dumps(identity)).hexdigest()
    assert identity["field_rule_digest"] == compiled().report["profile_field_rules_sha256"]
    assert identity["profile_name"] == "verl-rl-v0.9-single-gpu-v5"
    assert identity["upstream_tag"] == "v0.9.0"


def test_the_rules_digest_does_not_depend_on_the_launch_and_follows_the_rules(
    compiled, grpo, unbound
):
    digest = compiled().report["profile_field_rules_sha256"]
    assert compiled({"data.seed": 3}).report["profile_field_rules_sha256"] == digest
    nothing_set = Context(
        leaves=grpo.defaults, defaults=grpo.defaults, bindings=seen_by_rules(unbound, grpo)
    )
    profile = profiles.named(None)
    assert profiles.rules_sha256(profile, nothing_set) == digest
    turned = replace(profile, table=Table.of([*profile.table.rules[1:], profile.table.rules[0]]))
    assert profiles.rules_sha256(turned, nothing_set) != digest
