"""A frozen model that scores a conversation: a sequence classifier with one output, read at the last token.

What it reads is upstream's text, down to its oddities (verl/experimental/reward_loop/reward_loop.py:173, v0.9.0):
the response with its special tokens, but for the policy's end token; a leading beginning token is taken off, and
only a tokenizer that puts one in front of every text puts it back. Every conversation is a forward of its own, so
that no score depends on what else is scored.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from miniverl.engine import models
from miniverl.engine.digest import other_weights
from miniverl.engine.problem import Problem, Refused, WrongCall, told_of
from miniverl.engine.quantised import Kept, load_quantised
from miniverl.engine.recipe import RewardModel as RewardModelRecipe
from miniverl.engine.reward import Answer
from miniverl.engine.trajectory import Prompt

ARCHITECTURES = tuple(
    name.replace("CausalLM", "SequenceClassification") for name in models.ARCHITECTURES
)
_NAME = "reward_model"
_FIX = "Bind the folder of a whole Hugging Face sequence classifier with one output"


class RewardModel:
    """Scores answers, once its weights are loaded."""

    network: Any

    def __init__(self, recipe: RewardModelRecipe, folder: Path, *, eos_token: str) -> None:
        """`eos_token` is the policy's. Raises WrongCall for a folder that is not the recipe's model."""
        self._recipe = recipe
        self._folder = folder
        self._eos_token = eos_token
        with told_of(field=_NAME, fix=_FIX):
            models.check_folder(folder, ARCHITECTURES)
            self._tokenizer: Any = models.load_tokenizer(folder)
            _require_weights(folder, recipe.weights_sha256)

    def load(self, device: str, kept: Kept | None = None) -> None:
        """Raises WrongCall where the weights are not a classifier's with one output."""
        dtype = models.DTYPES[self._recipe.dtype]
        kind, sha256 = AutoModelForSequenceClassification, self._recipe.weights_sha256
        with told_of(field=_NAME, fix=_FIX):
            if self._recipe.quantization is None:
                network = models.load_network(kind, self._folder, dtype, device)
            else:
                assert kept is not None, "who loads quantised weights says where they stay"
                network = load_quantised(
                    kind, self._folder, sha256, dtype, device, kept, role=_NAME
                )
        if network.num_labels != 1:
            reason = f"it has {network.num_labels} outputs, and a reward is one number"
            raise WrongCall([_problem(self._folder, reason)])
        self.network = network.requires_grad_(False)

    def num_parameters(self) -> int:
        return models.num_weights(self.network)

    def score(self, prompt: Prompt, answer: Answer) -> float:
        """The classifier's raw output. Raises Refused for a conversation that is longer than the model reads."""
        tokens = self.tokens(prompt, answer)
        most = self.network.config.max_position_embeddings
        if not 0 < len(tokens) <= most:
            raise Refused([_unreadable(prompt, len(tokens), most)])
        tokens_BT = torch.tensor([tokens], device=self.network.device)
        with torch.inference_mode():
            # Not the network's own choice of a last token: it passes over what looks like padding.
            hidden_BTH = self.network.base_model(tokens_BT, use_cache=False).last_hidden_state
            return float(self.network.score(hidden_BTH[:, -1]))

    def tokens(self, prompt: Prompt, answer: Answer) -> list[int]:
        """What the model reads of an answer to a prompt."""
        response = answer.raw_text.replace(self._eos_token, "")
        text: str = self._tokenizer.apply_chat_template(
            [*prompt.messages, {"role": "assistant", "content": response}],
            add_generation_prompt=False,
            tokenize=False,
        )
        text = text.removeprefix(self._tokenizer.bos_token or "")
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        return tokens


def _require_weights(folder: Path, sha256: str) -> None:
    reason = other_weights(folder, sha256)
    if reason is not None:
        raise WrongCall([_problem(folder, reason)])


def _problem(folder: Path, reason: str) -> Problem:
    return Problem(field=_NAME, value=str(folder), origin="bindings", reason=reason, fix=_FIX)


def _unreadable(prompt: Prompt, count: int, most: int) -> Problem:
    return Problem(
        field=f"conversation of prompt {prompt.prompt_id}",
        value=f"{count} tokens",
        origin=prompt.data_source,
        reason=f"the reward model reads 1 to {most} tokens",
        fix="Bind a reward model that reads longer conversations, or limit prompts and responses",
    )
