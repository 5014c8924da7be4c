from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from verl_core.config.schema.warm_start import WarmStartConfig
from verl_core.data.row import DatasetRow
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.warm_start.examples import IGNORED, Example, examples_of, pad
from verl_core.warm_start.model import build_model
from verl_core.warm_start.sft import Progress, accuracy, train
from verl_core.warm_start.tokenizer import make_tokenizer

INNER = make_tokenizer()
TOKENIZER = ChatTokenizer(INNER, "tiny")
SMALL = WarmStartConfig(hidden_size=32, num_layers=1, steps=60, batch_size=16, lr=1e-2, target_accuracy=0.9)


def row(question: str, answer: str) -> DatasetRow:
    return DatasetRow(0, "here", [{"role": "user", "content": question}], "one_digit_sums", answer)


SUMS = [row("1+1=", "2"), row("9+9=", "18"), row("1+2=", "3")]


def test_examples_are_distinct_and_use_the_rollouts_own_ids() -> None:
    found = examples_of([SUMS[0], SUMS[1], SUMS[0]], TOKENIZER)
    assert [list(example.prompt_ids) for example in found] == [
        TOKENIZER.encode_chat(SUMS[0].messages, "").tolist(),
        TOKENIZER.encode_chat(SUMS[1].messages, "").tolist(),
    ]
    end = TOKENIZER.eos_token_id
    assert [example.answer_ids for example in found] == [(*INNER.encode("2"), end), (*INNER.encode("18"), end)]


def test_a_row_without_an_answer_cannot_be_taught() -> None:
    with pytest.raises(DataError, match="here: no ground_truth"):
        examples_of([DatasetRow(0, "here", [{"role": "user", "content": "1+1="}], "s", None)], TOKENIZER)


def test_labels_are_the_answer_one_position_early() -> None:
    batch = pad([Example((5, 6), (7, 8)), Example((5,), (9,))], pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8], [5, 9, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.labels.tolist() == [[IGNORED, 7, 8, IGNORED], [9, IGNORED, IGNORED, IGNORED]]


def test_accuracy_is_the_product_of_token_probabilities() -> None:
    model = build_model(INNER, SMALL)
    examples = examples_of(SUMS, TOKENIZER)
    chances, greedy = [], []
    for example in examples:  # one token after the other, no padding, no batch
        ids, chance, right = list(example.prompt_ids), 1.0, True
        for token in example.answer_ids:
            with torch.no_grad():
                probabilities = model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1)
            chance *= probabilities[token].item()
            right &= int(probabilities.argmax()) == token
            ids.append(token)
        chances.append(chance)
        greedy.append(right)
    found = accuracy(model, pad(examples, INNER.pad_token_id))
    assert found.sampled == pytest.approx(np.mean(chances), rel=1e-4)
    assert found.greedy == pytest.approx(np.mean(greedy))


def test_sampled_accuracy_is_what_sampling_finds() -> None:
    """400 samples of a half-trained model: within four standard errors (binomial, p(1-p)/400)."""
    config = WarmStartConfig(hidden_size=32, num_layers=1, steps=60, batch_size=16, lr=1e-2, target_accuracy=0.3)
    model = build_model(INNER, config)
    examples = examples_of(SUMS[:1], TOKENIZER)
    expected = train(model, examples, examples, INNER.pad_token_id, config, lambda _: None).accuracy.sampled
    assert 0.2 < expected < 0.98
    prompt = torch.tensor([examples[0].prompt_ids]).expand(400, -1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampled = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, max_new_tokens=2
        )
    right = (sampled[:, prompt.shape[1] :] == torch.tensor(examples[0].answer_ids)).all(-1).float().mean().item()
    assert abs(right - expected) < 4 * math.sqrt(expected * (1 - expected) / 400)


def trained(config: WarmStartConfig) -> tuple[LlamaForCausalLM, Progress, list[int]]:
    model, seen = build_model(INNER, config), []
    examples = examples_of(SUMS, TOKENIZER)
    end = train(model, examples, examples, INNER.pad_token_id, config, lambda progress: seen.append(progress.step))
    return model, end, seen


def test_training_stops_at_the_target_and_is_bitwise_repeatable() -> None:
    first, end, seen = trained(SMALL)
    assert end.accuracy.sampled >= SMALL.target_accuracy
    assert 0 < end.step < SMALL.steps
    assert seen == list(range(end.step + 1))
    threads = torch.get_num_threads()
    second, again, _ = trained(SMALL)
    assert torch.get_num_threads() == threads
    assert again == end
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_training_stops_at_the_last_step() -> None:
    config = WarmStartConfig(hidden_size=32, num_layers=1, steps=2, batch_size=4, lr=1e-4)
    _, end, seen = trained(config)
    assert end.step == 2
    assert seen == [0, 1, 2]
