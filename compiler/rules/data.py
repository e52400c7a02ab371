"""`data`: which rows, in which order, how long a prompt may be.

Sources: verl/utils/dataset/rl_dataset.py:90-270, verl/trainer/ppo/utils.py:150-175,
verl/trainer/ppo/v1/trainer_base.py:665-705.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    behind,
    dead,
    lowers,
    notes,
    reject,
    set_in_vain,
)
from miniverl.compiler.rules.limits import LARGEST_WHOLE, is_whole, truth, whole
from miniverl.compiler.rules.repeated import off
from miniverl.compiler.rules.switches import filters_groups, refills_failed_groups, validates

TORCH_DEFAULT_SEED = 67280421310721  # of a torch.Generator that nobody seeds

# RLHFDataset and the agent loop give these to the chat template themselves.
_TAKEN_ARGUMENTS = frozenset(
    {"add_generation_prompt", "conversation", "return_dict", "return_tensors", "tokenize", "tools"}
)


def _files(name: str, target: str) -> Rule:
    """The launch names files of the machine it was written for; the bound rows stand in for them."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        paths = value if isinstance(value, list) else [value]
        if not all(isinstance(path, str) for path in paths if path is not None):
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="upstream expects a path or a list of paths",
                fix=f"Set {field} to paths, and bind the rows to run on with --bind {name}=FILE.parquet",
            )
        return Verdict(
            classification=Class.LOWERED,
            reason="bound to rows on this machine, which the recipe names by content",
            label=target,
            target=target,
            lowered=context.bindings[name] if name == "train" or validates(context) else None,
        )

    return Rule(f"data.{'train' if name == 'train' else 'val'}_files", judge)


def _train_max_samples(field: str, value: Any, context: Context) -> Verdict:
    if type(value) is not int:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="upstream compares this count with 0",
            fix=f"Set {field} to a whole number; 0 or less takes every row",
        )
    rows = context.bindings["train_rows"]
    is_subset = value > 0 and (rows is None or value < rows)
    if is_subset and context.leaves["data.shuffle"]:
        is_seeded = context.leaves["data.seed"] is not None
        return Verdict(
            classification=Class.EXACT if is_seeded else Class.CONFORMANT,
            reason="the rows that numpy's generator draws for data.seed, before overlong prompts are dropped"
            if is_seeded
            else "upstream draws other rows in every run where data.seed is null; here they are always the same",
            label="data.max_rows",
            target="data.max_rows",
            lowered=value,
        )
    return Verdict(
        classification=Class.EXACT,
        reason="the first rows, taken before overlong prompts are dropped; 0 or less takes all",
        label="data.max_rows",
        target="data.max_rows",
        lowered=value if value > 0 else None,
    )


def _val_max_samples(field: str, value: Any, context: Context) -> Verdict:
    if type(value) is int and value <= 0:
        return Verdict(classification=Class.EXACT, reason="every bound row is used")
    return Verdict(
        classification=Class.NOT_IMPLEMENTED if type(value) is int else Class.UNSUPPORTED,
        reason="a validation on part of its rows is not done here",
        fix=f"Set {field}=-1 and bind a file with the rows you want",
    )


def _prompt_key(field: str, value: Any, context: Context) -> Verdict:
    columns = context.bindings["train_columns"]
    if not isinstance(value, str) or (columns and value not in columns):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason=f"the bound rows have no such column, but {', '.join(sorted(columns))}"
            if columns
            else "upstream expects the name of a column",
            fix=f"Set {field} to the column that holds the chat messages",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="the column with the chat messages",
        label="data.prompt_field",
        target="data.prompt_field",
        lowered=value,
    )


def _max_response_length(field: str, value: Any, context: Context) -> Verdict:
    """Upstream reads rollout.response_length, which follows this leaf unless it is set itself."""
    if context.leaves["actor_rollout_ref.rollout.response_length"] == value:
        return Verdict(
            classification=Class.CONFORMANT,
            reason="rollout.response_length holds the same number, and is the one that is read",
            label="rollout.max_response_tokens",
        )
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="not read: rollout.response_length is set to another number",
        warning=f"{field} is set, but responses end at actor_rollout_ref.rollout.response_length",
    )


def _train_batch_size(field: str, value: Any, context: Context) -> Verdict:
    limit = whole(field, at_least=1)
    if not limit.accepts(value):
        return reject(limit)
    rows = context.bindings["train_rows"]
    if rows is not None and rows < value:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason=f"one step takes {value} prompts, and the bound file has {rows} rows",
            fix=f"Set {field} to at most {rows}, or bind a larger file",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="prompts of one step",
        label="data.prompts_per_step",
        target="data.prompts_per_step",
        lowered=value,
    )


def _gen_batch_size(field: str, value: Any, context: Context) -> Verdict:
    """verl/trainer/ppo/v1/trainer_base.py:675: whoever drops or replaces groups fetches prompts one by one."""
    prompts = context.leaves["data.train_batch_size"]
    each = prompts if value is None else value
    refills = filters_groups(context) or refills_failed_groups(context)
    divides = is_whole(each, 1) and is_whole(prompts, 1) and prompts % each == 0
    if value is not None and not refills and not divides:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="upstream stops unless it divides data.train_batch_size",
            fix=f"Set {field}=null",
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="prompts are fetched one by one where groups are dropped or replaced, whatever is asked for"
        if refills
        else "as many prompts are fetched at once; what is left of an epoch's rows is dropped",
        label="data.prompts_per_draw",
        target="data.prompts_per_draw",
        lowered=1 if refills else each,
        warning=f"{field} is set, and upstream overrides it by 1"
        if refills and value not in (None, 1)
        else None,
    )


def _seed(field: str, value: Any, context: Context) -> Verdict:
    limit = Limit(
        accepts=lambda seed: seed is None or (is_whole(seed, 0) and seed <= LARGEST_WHOLE),
        because="a seed is a whole number of at least 0, below 2^53",
        fix=f"Set {field} to such a number, or to null for torch's own default",
    )
    if not limit.accepts(value):
        return reject(limit)
    if not context.leaves["data.shuffle"]:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: data.shuffle is off",
            target="seeds.data",
            lowered=TORCH_DEFAULT_SEED,
            warning=set_in_vain(field, context),
        )
    return Verdict(
        classification=Class.EXACT,
        reason="null is torch's default seed, so that the order is the same in every run"
        if value is None
        else "seeds the generator that orders the rows",
        label="seeds.data",
        target="seeds.data",
        lowered=TORCH_DEFAULT_SEED if value is None else value,
    )


def _dataloader_num_workers(field: str, value: Any, context: Context) -> Verdict:
    """With workers the first epoch uses the second permutation of the generator, without the first."""
    limit = whole(field, at_least=0)
    if not limit.accepts(value):
        return reject(limit)
    reorders = bool(value) and bool(context.leaves["data.shuffle"])
    return Verdict(
        classification=Class.CONFORMANT,
        reason="no processes here; with any upstream, the generator's second permutation orders epoch 0"
        if reorders
        else "no processes here; the generator's first permutation orders epoch 0",
        label="data.first_permutation",
        target="data.first_permutation",
        lowered=2 if reorders else 1,
    )


def _column_of_media(name: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        if isinstance(value, str) and value in context.bindings["train_columns"]:
            return Verdict(
                classification=Class.NOT_IMPLEMENTED,
                reason="the bound rows have this column; only text is trained on here",
                fix="Bind rows of text",
            )
        return Verdict(
            classification=Class.INFORMATIONAL, reason="only rows with such a column read it"
        )

    return Rule(f"data.{name}_key", judge)


def _truncation(field: str, value: Any, context: Context) -> Verdict:
    if value in ("error", "left"):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="nothing reads it: a prompt that is too long is dropped, or loses its left end",
            label="data.drops_overlong",
        )
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="nothing reads it at the pin, where prompts lose their left end whatever is asked for",
        fix=f"Set {field}=left, or data.filter_overlong_prompts=True to drop prompts that are too long",
    )


def _chat_template_arguments(field: str, value: Any, context: Context) -> Verdict:
    """The whole mapping is one leaf while it is empty, and each argument one when it is not."""
    argument = field.removeprefix("data.apply_chat_template_kwargs").lstrip(".")
    if argument.partition(".")[0] in _TAKEN_ARGUMENTS or (not argument and value != {}):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="upstream gives this argument itself, and stops when it comes twice"
            if argument
            else "upstream expects a mapping of arguments",
            fix=f"Remove {field}" if argument else f"Set {field}={{}}",
        )
    target = f"data.chat_template_arguments{'.' if argument else ''}{argument}"
    return Verdict(
        classification=Class.EXACT,
        reason="goes to the chat template, in the length filter and in the rollout",
        label=target,
        target=target,
        lowered=value,
    )


RULES: tuple[Rule, ...] = (
    dead("data.tokenizer", "nothing reads it: model.tokenizer_path is read"),
    notes(
        "data.use_shm", Class.LOWERED, "copies files to shared memory upstream; files are read here"
    ),
    _files("train", "data.train_sha256"),
    _files("validation", "data.validation_sha256"),
    Rule("data.train_max_samples", _train_max_samples),
    Rule("data.val_max_samples", _val_max_samples),
    Rule("data.prompt_key", _prompt_key),
    dead(
        "data.reward_fn_key", "nothing reads it: reward managers take data_source, whatever it says"
    ),
    lowers(
        "data.max_prompt_length",
        "data.max_prompt_tokens",
        "the same bound, in tokens of the whole chat template",
        limit=whole("data.max_prompt_length", at_least=1),
    ),
    Rule("data.max_response_length", _max_response_length),
    Rule("data.train_batch_size", _train_batch_size),
    Rule("data.gen_batch_size", _gen_batch_size),
    notes(
        "data.val_batch_size",
        Class.LOWERED,
        "how validation is split; its results do not depend on it",
    ),
    *(
        off(
            f"data.{name}",
            None,
            what="tools for the model to call",
            because="agents that call tools are not run here",
            fix=f"Set data.{name}=null",
        )
        for name in ("tool_config_path", "function_tool_path")
    ),
    *(
        dead(f"data.{name}", "stored and never read, or not read at all")
        for name in (
            "return_raw_input_ids",
            "return_raw_chat",
            "return_full_prompt",
            "return_multi_modal_inputs",
        )
    ),
    lowers(
        "data.shuffle",
        "data.shuffles",
        "draws the order of the rows anew each epoch, as torch's random sampler does",
        limit=truth("data.shuffle"),
    ),
    Rule("data.seed", _seed),
    Rule("data.dataloader_num_workers", _dataloader_num_workers),
    notes("data.image_patch_size", Class.INFORMATIONAL, "only rows with images read it"),
    notes(
        "data.validation_shuffle",
        Class.CONFORMANT,
        "the order of validation rows, which changes none of their samples or scores",
        label="validation",
    ),
    lowers(
        "data.filter_overlong_prompts",
        "data.drops_overlong",
        "drops prompts that are too long before training; otherwise they lose their left end",
        limit=truth("data.filter_overlong_prompts"),
    ),
    notes(
        "data.filter_overlong_prompts_workers",
        Class.LOWERED,
        "processes of the length filter upstream; one suffices here",
    ),
    Rule("data.truncation", _truncation),
    *map(_column_of_media, ("image", "video", "audio")),
    off(
        "data.trust_remote_code",
        False,
        what="running code that comes with a model",
        otherwise=Class.UNSUPPORTED,
        because="nothing reads it upstream, and code that comes with a model is never run here",
        fix="Set data.trust_remote_code=False",
    ),
    off(
        "data.custom_cls.path",
        None,
        what="a dataset class of the user's own",
        because="dataset classes of the user's own are not run here",
        fix="Set data.custom_cls.path=null, and bind rows in upstream's layout",
    ),
    behind(
        "data.custom_cls.name",
        lambda context: context.leaves["data.custom_cls.path"] is not None,
        off="not read: data.custom_cls.path is null",
        on="waits for data.custom_cls.path, which is not run here",
    ),
    Rule("data.apply_chat_template_kwargs*", _chat_template_arguments),
    off(
        "data.continuous_token.enable",
        False,
        what="tokenising several turns as one stream",
        because="conversations of several turns are not run here",
        fix="Set data.continuous_token.enable=False",
    ),
    behind(
        "data.continuous_token.model_family",
        lambda context: bool(context.leaves["data.continuous_token.enable"]),
        off="not read: data.continuous_token.enable is off",
        on="waits for data.continuous_token.enable, which is not run here",
    ),
    notes(
        "data.mm_processor_kwargs*",
        Class.INFORMATIONAL,
        "only rows with images, videos or sound read it",
    ),
)

APPENDED: tuple[Rule, ...] = (
    notes(
        "data.cache_dir", Class.LOWERED, "where upstream copies remote files; rows are bound here"
    ),
)
