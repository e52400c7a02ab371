"""The parts of the comparison: which contestants are asked what, in which order."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from miniverl.bench.peers import setting as settings
from miniverl.bench.peers.contestant import Contestant, Program, in_turns, started
from miniverl.bench.peers.prediction import least_seconds
from miniverl.bench.peers.setting import Setting
from miniverl.engine.recipe import Dtype

Json = Mapping[str, Any]

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
BATCHES = (1, 4, 8, 32)
PROMPT_TOKENS = NEW_TOKENS = 64
_LOOP_ROWS = 2  # its rate does not depend on how many there are
SLOTS = (16, 32)
SAMPLES = 4
VOCABULARIES = (49152, 151936)
_QUESTION_TOKENS = 54  # of every prompt of the workload, its chat template included
GROWN_PROMPTS = (2, 4, 8)
GROWN_TOKENS = (64, 256)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One comparison: contestant -> its answers, a round after the other. `facts` are what it was about."""

    name: str
    answers: Mapping[str, Sequence[Json]]
    facts: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    title: str
    rounds: int
    needs_peers: bool
    measure: Callable[[Setting, int], list[Cell]]


def plain(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [asdict(cell) for cell in cells]


def _rollout(at: Setting, rounds: int) -> list[Cell]:
    model, files = at.model, at.gguf()
    prompts = settings.token_windows(model, max(BATCHES), PROMPT_TOKENS)
    cells = []
    for dtype in DTYPES:
        arguments = ("--dtype", dtype)
        programs = [
            at.ours("ours", "ours_rollout", str(model), *arguments),
            at.peer("transformers", "peer_generate", str(model), *arguments),
            at.peer("llama.cpp", "peer_llama", str(files[dtype]), *arguments),
            at.peer("loop", "peer_loop", str(model), *arguments),
        ]
        with started(programs) as contestants:
            _warm_up(contestants, {"prompts": prompts[:2], "new_tokens": 4})
            for batch in BATCHES:
                question = {"prompts": prompts[:batch], "new_tokens": NEW_TOKENS}
                questions = dict.fromkeys(("ours", "transformers", "llama.cpp"), question)
                if batch == BATCHES[1]:
                    few = {"prompts": prompts[:_LOOP_ROWS], "new_tokens": NEW_TOKENS}
                    questions["loop"] = few
                cells.append(
                    _asked(
                        at,
                        f"{dtype}, batch {batch}",
                        contestants,
                        questions,
                        rounds,
                        dtype=dtype,
                        batch=batch,
                    )
                )
    return cells


def _step(at: Setting, rounds: int) -> list[Cell]:
    base, paths = settings.compiled()
    rows = at.scratch / "rows.json"
    settings.write_questions(rows)
    cells = []
    for dtype in DTYPES:
        for has_kl in (False, True):
            name = f"{dtype}, {'with' if has_kl else 'without'} KL"
            recipe = settings.step_recipe(
                base, dtype=dtype, has_kl=has_kl, prompts=2, tokens=NEW_TOKENS
            )
            folder = at.scratch / "steps" / name.replace(" ", "-").replace(",", "")
            shutil.rmtree(folder, ignore_errors=True)
            settings.write_run(folder, recipe, paths)
            arguments = ("--rows", str(rows), "--out", str(at.scratch / "trl"), "--dtype", dtype)
            kl = ("--kl", str(settings.KL if has_kl else 0.0), "--new-tokens", str(NEW_TOKENS))
            programs = [
                at.ours("ours", "ours_step", str(folder)),
                at.peer("trl", "peer_trl", paths["model"], *arguments, *kl),
            ]
            with started(programs) as contestants:
                questions: dict[str, Json] = {"ours": {}, "trl": {}}
                cells.append(_asked(at, name, contestants, questions, rounds, dtype=dtype))
            shutil.rmtree(folder)
    return cells


def _refill(at: Setting, rounds: int) -> list[Cell]:
    program = at.ours("ours", "ours_refill", str(at.model))
    cells = []
    with started([program]) as contestants:
        for slots in SLOTS:
            question = {"num_prompts": 24, "samples": SAMPLES, "new_tokens": 192, "slots": slots}
            ways = {way: {**question, "way": way} for way in ("refilled", "padded")}
            both = dict.fromkeys(ways, contestants["ours"])
            found = _asked(at, f"{slots} slots", both, ways, rounds, slots=slots)
            cells.append(_without_tokens(found))
    return cells


def _without_tokens(found: Cell) -> Cell:
    """The answers without their tokens; the ways have the same ones."""
    tokens = [answer["responses"] for answers in found.answers.values() for answer in answers]
    facts = {
        **found.facts,
        "tokens_are_equal": all(each == tokens[0] for each in tokens),
        "lengths": sorted(map(len, tokens[0])),
    }
    kept = {
        name: [{"seconds": each["seconds"], "tokens": each["tokens"]} for each in answers]
        for name, answers in found.answers.items()
    }
    return Cell(name=found.name, answers=kept, facts=facts)


def _update(at: Setting, rounds: int) -> list[Cell]:
    base, _ = settings.compiled()
    rows = _sampled_rows(at)
    lengths = [len(row["response"]) for row in rows]
    cells = []
    for dtype in DTYPES:
        recipe = settings.step_recipe(
            base, dtype=dtype, has_kl=False, prompts=len(rows) // SAMPLES, tokens=max(lengths)
        )
        folder = at.scratch / "updates" / dtype
        shutil.rmtree(folder, ignore_errors=True)
        settings.write_run(folder, recipe, {})
        model = str(at.model)
        programs = [
            at.ours("ours", "ours_update", model, "--recipe", str(folder / "recipe.json")),
            at.peer("plain", "peer_update", model, "--dtype", dtype, "--rows-at-once", "8"),
        ]
        with started(programs) as contestants:
            for work in ("update", "score"):
                question = {"rows": rows, "work": work}
                _warm_up(contestants, {**question, "rows": rows[:8]})
                questions = dict.fromkeys(contestants, question)
                name = f"{work}, {dtype}"
                facts = {"work": work, "dtype": dtype, "lengths": sorted(lengths)}
                cells.append(_asked(at, name, contestants, questions, rounds, **facts))
    return [*cells, *_loss(at)]


def _sampled_rows(at: Setting) -> list[Json]:
    """4 answers to each of 4 questions, as long as the model makes them."""
    question = {"num_prompts": 4, "samples": SAMPLES, "new_tokens": 192, "slots": 16}
    with started([at.ours("ours", "ours_refill", str(at.model))]) as contestants:
        found = contestants["ours"].ask({**question, "way": "refilled", "round": 0})
    return [
        {
            "prompt_id": number // SAMPLES,
            "prompt": found["prompts"][number // SAMPLES],
            "response": response,
        }
        for number, response in enumerate(found["responses"])
    ]


def _loss(at: Setting) -> list[Cell]:
    """A process each, so that neither takes over memory from the other."""
    answers = {}
    for vocabulary in VOCABULARIES:
        with started([at.ours("ours", "ours_loss")]) as contestants:
            asked = contestants["ours"].ask({"vocabulary": vocabulary})
        answers[str(vocabulary)] = [asked]
    return [Cell(name="loss memory", answers=answers, facts={"vocabularies": VOCABULARIES})]


def _growth(at: Setting, rounds: int) -> list[Cell]:
    base, paths = settings.compiled()
    sizes = {f"{prompts} x {NEW_TOKENS}": (prompts, NEW_TOKENS) for prompts in GROWN_PROMPTS}
    sizes |= {f"2 x {tokens}": (2, tokens) for tokens in GROWN_TOKENS}
    programs: list[Program] = []
    facts: dict[str, Any] = {"limits": settings.limits(), "sizes": {}}
    for name, (prompts, tokens) in sizes.items():
        recipe = settings.step_recipe(
            base, dtype="float32", has_kl=False, prompts=prompts, tokens=tokens
        )
        folder = at.scratch / "growth" / name.replace(" ", "")
        shutil.rmtree(folder, ignore_errors=True)
        settings.write_run(folder, recipe, paths)
        programs.append(at.ours(name, "ours_step", str(folder)))
        facts["sizes"][name] = {
            "prompts": prompts,
            "new_tokens": tokens,
            "least_seconds": least_seconds(recipe, at.model, _QUESTION_TOKENS, facts["limits"]),
        }
    with started(programs) as contestants:
        questions: dict[str, Json] = {name: {} for name in sizes}
        found = _asked(at, "growth", contestants, questions, rounds, **facts)
    shutil.rmtree(at.scratch / "growth")
    return [found]


def _warm_up(contestants: Mapping[str, Contestant], question: Json) -> None:
    for contestant in contestants.values():
        contestant.ask({**question, "round": 0})


def _asked(
    at: Setting,
    name: str,
    contestants: Mapping[str, Contestant],
    questions: Mapping[str, Json],
    rounds: int,
    **facts: Any,
) -> Cell:
    def told(contestant: str, answer: Json) -> None:
        at.tell(f"  {name}: {contestant} {answer['seconds']:.2f} s")

    answers = in_turns(contestants, questions, rounds, told)
    return Cell(name=name, answers=answers, facts=facts)


PARTS = {
    "rollout": Part(
        title="Rollout: 64 prompt tokens and 64 new ones",
        rounds=2,
        needs_peers=True,
        measure=_rollout,
    ),
    "step": Part(
        title="A whole GRPO step: 2 prompts, 4 samples each, 64 tokens, LoRA of rank 16",
        rounds=2,
        needs_peers=True,
        measure=_step,
    ),
    "refill": Part(
        title="Slots that are refilled, and padded batches, at natural lengths",
        rounds=2,
        needs_peers=False,
        measure=_refill,
    ),
    "update": Part(
        title="Update and scoring of a real rollout's responses",
        rounds=3,
        needs_peers=True,
        measure=_update,
    ),
    "growth": Part(
        title="What more prompts and longer responses cost",
        rounds=2,
        needs_peers=False,
        measure=_growth,
    ),
}
