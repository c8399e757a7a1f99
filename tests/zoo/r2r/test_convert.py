"""Official checkpoints: the same figures come out, and what is not supported is named."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from tests.scripted import dummy
from tokenrouter.core import InputError
from tokenrouter.engine.routers import context_of
from zoo import weights
from zoo.models.tokenizer import build
from zoo.r2r.convert import EMBEDDINGS, NETWORK, main, read
from zoo.r2r.network import Features, R2RNetwork, Sizes
from zoo.r2r.router import KIND
from zoo.setup import Setup

HIDDEN, LOGITS, WIDTH, BLOCKS = 32, 10, 16, 3
Tensors = dict[str, torch.Tensor]


def official(hidden: int = HIDDEN) -> Tensors:
    """A state_dict as the official code writes it: names and shapes of its modules."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"logits_projection": (hidden, LOGITS), "combined_projection": (WIDTH, 3 * hidden),
              "backbone.input_projection": (WIDTH, WIDTH), "backbone.output_layer.1": (1, WIDTH)}
    for i in range(BLOCKS):
        shapes |= {f"backbone.blocks.{i}.mlp.0": (4 * WIDTH, WIDTH), f"backbone.blocks.{i}.mlp.3": (WIDTH, 4 * WIDTH)}
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": torch.randn(shape[0], generator=generator) for name, shape in shapes.items()}
    for norm in (*(f"backbone.blocks.{i}.layer_norm" for i in range(BLOCKS)), "backbone.output_layer.0"):
        tensors |= {f"{norm}.{kind}": torch.randn(WIDTH, generator=generator) for kind in ("weight", "bias")}
    return tensors


def official_logit(t: Tensors, features: Features) -> torch.Tensor:
    """[B]: the official forward pass, without dropout."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), t[f"{name}.weight"], t[f"{name}.bias"])

    combined = torch.cat([features.hidden, features.embedding, linear("logits_projection", features.top_logits)], -1)
    x = linear("backbone.input_projection", linear("combined_projection", combined))
    for i in range(BLOCKS):
        at = f"backbone.blocks.{i}"
        x = x + linear(f"{at}.mlp.3", F.gelu(linear(f"{at}.mlp.0", norm(f"{at}.layer_norm", x))))
    return linear("backbone.output_layer.1", norm("backbone.output_layer.0", x)).squeeze(-1)


def checkpoint(tensors: Tensors, **changes: Any) -> dict[str, Any]:
    init = {"hidden_states_size": HIDDEN, "logits_size": LOGITS, "hidden_dims": [WIDTH] * BLOCKS, "expansion_factor": 4,
            "dropout_rate": 0.1, "use_position_embedding": False, "freeze_lm_head": True, "normalize_input": False,
            "pretrained_model_name": "Some/Model-0.6B", "dtype": torch.float32}
    return {"model_type": NETWORK, "init_args": init, "model_specific_args": {},
            "common_args": {"threshold": 0.42, "input_type": ["hidden_states", "token", "logits"]},
            "state_dict": tensors} | changes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for a pair of small models on disk, the large one in shards."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), build(20)
    for seed, role in enumerate(("small", "large")):
        model = dummy(seed, vocab_size=len(tokenizer))
        model.save_pretrained(folder / role, max_shard_size="5GB" if role == "small" else "10KB")
        tokenizer.save_pretrained(folder / role)
    assert (folder / "large/model.safetensors.index.json").is_file()
    return [f"models.tokenizer={folder}/small", *(f"models.roles.{r}.path={folder}/{r}" for r in ("small", "large"))]


@pytest.fixture
def convert(tmp_path: Path, models: list[str]) -> Callable[[Any], str]:
    """Writes a checkpoint and converts it; the router's file."""

    def made(content: Any, *overrides: str) -> str:
        torch.save(content, tmp_path / "default_router.pt")
        main([str(tmp_path / "default_router.pt"), f"out={tmp_path}/router.safetensors", *models, *overrides])
        return f"{tmp_path}/router.safetensors"

    return made


def loaded(file: str) -> R2RNetwork:
    tensors, metadata = weights.load(file, KIND)
    network = R2RNetwork(Sizes(**metadata["sizes"])).eval()
    network.load_state_dict(tensors)
    return network


def test_the_network_gives_what_the_official_one_gives(convert: Callable[..., str]) -> None:
    tensors, features = official(), Features(torch.randn(5, HIDDEN), torch.randn(5, LOGITS) * 5, torch.randn(5, HIDDEN))
    expected = official_logit(tensors, features)
    assert expected.std() > 0.1
    torch.testing.assert_close(loaded(convert(checkpoint(tensors)))(features), expected, rtol=1e-5, atol=1e-5)


def test_the_file_is_a_router_of_its_pair(
    convert: Callable[..., str], models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = convert(checkpoint(official()))
    said = capsys.readouterr().out
    assert f"algo.weights={file} algo.threshold=0.42" in said and "trained with Some/Model-0.6B" in said
    setup = Setup.compose(["algo=r2r", f"algo.weights={file}", *models])
    _, metadata = weights.load(file, KIND)
    contexts = {role: context_of(setup.engine(role, 1, 64)) for role in ("small", "large")}
    for role, context in contexts.items():
        weights.check_model(file, metadata, role, context)
        router = setup.algorithm.router(role)
        router.setup(context)
    with pytest.raises(InputError, match=r"models.small: its fingerprint"):
        weights.check_model(file, metadata, "small", contexts["large"])


def test_tensors_alone_are_enough(tmp_path: Path, models: list[str]) -> None:
    save_file(official(), tmp_path / "state.safetensors")
    main([str(tmp_path / "state.safetensors"), f"out={tmp_path}/router.safetensors", *models])
    assert weights.load(f"{tmp_path}/router.safetensors", KIND)[1]["threshold"] is None


def test_embeddings_that_a_checkpoint_holds_must_be_the_models(convert: Callable[..., str], models: list[str]) -> None:
    setup = Setup.compose(["algo=r2r", *models])
    engine = setup.engine("small", 1, 64)
    table = engine.embed(torch.arange(engine.info.vocab_size))
    assert loaded(convert(checkpoint(official() | {EMBEDDINGS: table}))).sizes.hidden_size == HIDDEN
    with pytest.raises(InputError, match="allowed is the model whose input embeddings the checkpoint holds"):
        convert(checkpoint(official() | {EMBEDDINGS: table + 0.1}))


def without(name: str) -> Tensors:
    return {key: tensor for key, tensor in official().items() if key != name}


@pytest.mark.parametrize(("content", "said"), [
    (checkpoint(official(), model_type="LogitsClassifier"), f"model_type='LogitsClassifier': allowed is '{NETWORK}'"),
    (checkpoint(official(), init_args={"normalize_input": True}), "normalize_input=True: allowed is False"),
    (checkpoint(official(), init_args={"use_position_embedding": True}), "use_position_embedding=True: allowed is"),
    (checkpoint(official(), common_args={"input_type": ["hidden_states"]}), "common_args.input_type="),
    (checkpoint(official() | {"layer_norm_token.weight": torch.ones(3)}), "state_dict: holds layer_norm_token.weight"),
    (checkpoint(official() | {"backbone.blocks.0.dim_change.weight": torch.ones(3, 3)}), "holds .*dim_change.weight"),
    (checkpoint(official() | {"backbone.blocks.1.mlp.0.weight": torch.ones(8, 8)}), r"blocks.1.up.weight \(names as"),
    (checkpoint(without("backbone.blocks.2.mlp.3.bias")), "missing.*: blocks.2.down.bias"),
    (checkpoint(without("logits_projection.weight")), "lacks the layer that is 'logits.weight' here"),
    (checkpoint(official() | {"backbone.output_layer.1.weight": torch.ones(3, WIDTH)}), "has 3 outputs; allowed is 1"),
    (checkpoint(official(hidden=48)), "models.roles.small.path='small': its hidden size is 32; allowed is 48"),
    (official(), "has no state_dict"),
    (checkpoint(official(), common_args=SimpleNamespace(threshold=1)), r"allowed is an official R2R checkpoint"),
])
def test_what_is_refused(convert: Callable[..., str], content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        convert(content)


def test_files_that_are_none(tmp_path: Path, models: list[str]) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read(tmp_path / "nothing.pt")
    for name in ("broken.pt", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(InputError, match="allowed is an official R2R checkpoint, or its state_dict as safetensors"):
            read(tmp_path / name)
    for arguments in ([], ["a", "b"], [f"out={tmp_path}/x.safetensors"]):
        with pytest.raises(InputError, match="allowed is CHECKPOINT out=FILE"):
            main(arguments)
    with pytest.raises(InputError, match=r"ends in \.safetensors"):
        main(["a.pt", "out=x.pt"])
