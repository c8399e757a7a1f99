"""R2R's network and router: sizes, folding, selection, and which models the weights are for."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scripted import dummy
from tokenrouter.core import InputError, Request, SamplingParams
from tokenrouter.interface import Algorithm, LogitsOutput, ModelContext, RequestView, StepResult
from zoo import weights
from zoo.r2r.network import Features, FoldedNetwork, R2RNetwork, Sizes, top_logits
from zoo.r2r.router import KIND, R2RLarge, R2RSmall
from zoo.reference import Reference

HIDDEN, VOCAB = 32, 64


@pytest.mark.parametrize(("hidden_size", "parameters"), [
    (1536, 56_302_081), (1024, 54_677_505), (2048, 57_926_657), (2560, 59_551_233),
])
def test_parameter_counts_of_the_paper(hidden_size: int, parameters: int) -> None:
    with torch.device("meta"):
        network = R2RNetwork(Sizes(hidden_size))
    assert sum(p.numel() for p in network.parameters()) == parameters


def network(seed: int = 0) -> R2RNetwork:
    torch.manual_seed(seed)
    made = R2RNetwork(Sizes(HIDDEN, num_logits=10, width=16, expansion=2, num_blocks=2)).eval()
    made.mean.normal_()
    made.std.uniform_(0.5, 2.0)
    for parameter in made.parameters():
        if parameter.dim() == 1:  # biases and norms too, or folding them wrongly would not show
            torch.nn.init.normal_(parameter, 0.3)
    return made


def test_folding_changes_nothing() -> None:
    full, embeddings = network(), torch.randn(VOCAB, HIDDEN)
    tokens, logits, hidden = torch.randint(0, VOCAB, (7,)), torch.randn(7, VOCAB) * 5, torch.randn(7, HIDDEN)
    folded = FoldedNetwork(full, embeddings)
    expected = full(Features(hidden, top_logits(logits, 10), embeddings[tokens]))
    assert expected.std() > 0.05
    torch.testing.assert_close(folded(tokens, logits, hidden), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return dummy(1), dummy(2)


def context(model: Any) -> ModelContext:
    return ModelContext(torch.device("cpu"), VOCAB, HIDDEN, (), model.get_input_embeddings())


@pytest.fixture(scope="module")
def file(models: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    made = network()
    path = tmp_path_factory.mktemp("r2r") / "router.safetensors"
    described = {role: weights.describe(f"dummy-{role}", context(m)) for role, m in zip(("small", "large"), models,
                                                                                         strict=True)}
    weights.save(path, made.state_dict(), {"kind": KIND, "sizes": made.sizes._asdict(), "models": described})
    return str(path)


def router(file: str, models: tuple[Any, Any], **config: Any) -> R2RSmall:
    made = R2RSmall(weights=file, **config)
    made.setup(context(models[0]))
    return made


def result(rows: int, thresholds: list[float | None] | None = None) -> StepResult:
    torch.manual_seed(rows)
    views = []
    for threshold in thresholds or [None] * rows:
        params = {} if threshold is None else {"threshold": threshold}
        views.append(RequestView(Request("0", 0, 0, 0, 0, SamplingParams(0, 9), params, [1], 1, [1, 0]), 2))
    output = LogitsOutput(torch.randn(rows, VOCAB), torch.randn(rows, HIDDEN))
    return StepResult(torch.randint(0, VOCAB, (rows,)), output, views)


def test_a_proposal_at_the_threshold_leaves(file: str, models: tuple[Any, Any]) -> None:
    step = result(5)
    scores = router(file, models).scores(step)[0]
    ordered = scores.sort().values
    assert len(set(ordered.tolist())) == 5
    for threshold in ordered.tolist():
        sent = router(file, models, threshold=threshold).route(step)
        assert sent.tolist() == (scores >= threshold).long().tolist()
        assert sent[(scores == threshold)].item() == 1


def test_never_always_and_thresholds_of_single_requests(file: str, models: tuple[Any, Any]) -> None:
    inf = float("inf")
    assert router(file, models, threshold="never").route(result(3)).tolist() == [0, 0, 0]
    assert router(file, models, threshold="always").route(result(3)).tolist() == [1, 1, 1]
    mixed = router(file, models, threshold="never").route(result(3, [None, -inf, inf]))
    assert mixed.tolist() == [0, 1, 0]


def test_rows_are_independent(file: str, models: tuple[Any, Any]) -> None:
    made, step = router(file, models), result(6)
    together = made.scores(step)[0]
    for row in range(6):
        tokens, (logits, hidden) = step.next_token_ids, step.logits_output
        alone = StepResult(tokens[row : row + 1], LogitsOutput(logits[row : row + 1], hidden[row : row + 1]),
                           [step.requests[row]])
        torch.testing.assert_close(made.scores(alone)[0], together[row : row + 1], rtol=1e-5, atol=1e-6)


def test_infinite_and_missing_numbers_do_no_harm(file: str, models: tuple[Any, Any]) -> None:
    step = result(3)
    step.logits_output.next_token_logits[0, 5:] = -torch.inf
    step.logits_output.hidden_states[1] = torch.nan
    scores = router(file, models).scores(step)[0]
    assert scores[0].isfinite() and 0 <= scores[0] <= 1
    assert scores[1] == 1
    assert router(file, models, threshold="never").route(step).tolist() == [0, 0, 0]


def test_weights_fit_one_pair_of_models(file: str, models: tuple[Any, Any]) -> None:
    Reference(pair(file), models)
    with pytest.raises(InputError, match=r"models.small: its fingerprint is .*; allowed is dummy-small \(fingerprint"):
        Reference(pair(file), models[::-1])
    with pytest.raises(InputError, match=r"models.large: its fingerprint"):
        Reference(pair(file), [models[0], models[0]])
    wider = dummy(1, hidden_size=48)
    with pytest.raises(InputError, match=r"its hidden_size is 48; allowed is dummy-small \(hidden_size 32\)"):
        R2RSmall(weights=file).setup(context(wider)._replace(hidden_size=48))


def pair(file: str) -> Algorithm:
    roles = {role: {"_target_": f"zoo.r2r.router.R2R{role.title()}", "weights": file} for role in ("small", "large")}
    return Algorithm("r2r", ("small", "large"), roles, "small")


def test_the_fingerprint_survives_another_precision(models: tuple[Any, Any]) -> None:
    table = models[0].get_input_embeddings().weight.detach().bfloat16()
    stored = context(models[0])._replace(embed=lambda ids: table[ids])
    loaded = stored._replace(embed=lambda ids: table.float()[ids])
    assert weights.fingerprint(stored) == weights.fingerprint(loaded)


def test_weights_that_are_not_there_or_not_ours(file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights='nowhere.safetensors': allowed is a safetensors file"):
        R2RSmall(weights="nowhere.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="allowed is a safetensors file"):
        R2RLarge(weights=str(tmp_path / "broken.safetensors"))
    other = tmp_path / "other.safetensors"
    weights.save(other, {"a": torch.zeros(1)}, {"kind": "citer"})
    with pytest.raises(InputError, match="this one is 'citer'"):
        R2RSmall(weights=str(other))


def test_the_embedding_table_is_not_stored(file: str) -> None:
    tensors, _ = weights.load(file, KIND)
    assert not [name for name, tensor in tensors.items() if VOCAB in tensor.shape]
