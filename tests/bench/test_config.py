"""Bad input: one line that names the field, the value and what is allowed, and nothing started."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.config import explain_composition
from bench.plan import prepare
from tests.bench.conftest import ROOT, Compose
from tokenrouter.core import InputError

ROW = '{"id": 1, "problem": "1 + 1?", "answer": 2}\n'


def explained(composed: Compose, override: str) -> str:
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        composed(override)
    return explain_composition(caught.value)


@pytest.mark.parametrize(("group", "choice"), [
    ("algo", "entropy"), ("workload", "aime"), ("models", "tiny"), ("engine", "torch"), ("system", "tokenrouter"),
])  # fmt: skip
def test_choices_that_do_not_exist(composed: Compose, group: str, choice: str) -> None:
    said, _, choices = explained(composed, f"{group}=nope").partition(": allowed is one of ")
    assert said == f"{group}=nope" and choice in choices.split(", ")


@pytest.mark.parametrize(("override", "said"), [
    ("nope=1", "nope=1: unknown; allowed is one of algo, workload, "),
    ("load.nope=1", "load.nope=1: unknown; allowed is one of mode, via, concurrency, "),
    ("workload.nope=1", "workload.nope=1: unknown; allowed is a field that the yaml in conf/workload/ has"),
    ("hardware.link.delay_ms=2", "hardware.link.delay_ms=2: hardware.link is null; allowed is hardware.link={delay_ms"),
    ("hardware.link.nope=2", "hardware.link.nope=2: unknown; allowed is one of delay_ms, gbytes_per_s"),
    ("engine.options={nope: 0}", "engine.options.nope: unknown; allowed is a field that the yaml in conf/engine/ has"),
    ("nope", "nope: not understood; allowed is group=choice or group.field=value"),
    ("batching.B=[1,", "batching.B=[1,: not understood; allowed is group=choice or group.field=value"),
    ("load.seed=${nope}", "Interpolation key 'nope' not found"),
])  # fmt: skip
def test_what_cannot_be_composed(composed: Compose, override: str, said: str) -> None:
    line = explained(composed, override)
    assert line.startswith(said) and "\n" not in line


@pytest.mark.parametrize(("overrides", "said"), [
    (["load=poisson", "load.request_rate=0"], "load.request_rate=0: allowed is a number > 0"),
    (["load=poisson", "load.request_rate=null"], "load.request_rate=None: allowed with load.mode=poisson is a number"),
    (["load.request_rate=2"], "load.request_rate=2.0: allowed with load.mode=closed is null"),
    (["load.slo.ttft_ms=-1"], "load.slo.ttft_ms=-1: allowed is a number > 0"),
    (["load.concurrency=0"], "load.concurrency=0: allowed is a whole number >= 1"),
    (["load.concurrency=many"], "load.concurrency='many': allowed is a whole number >= 1"),
    (["load.num_requests=-1"], "load.num_requests=-1: allowed is a whole number >= 1"),
    (["load.warmup=-1"], "load.warmup=-1: allowed is a whole number >= 0"),
    (["load.seed=1.5"], "load.seed=1.5: allowed is a whole number >= 0"),
    ([f"load.seed={2**63}"], f"load.seed={2**63}: allowed is a whole number >= 0 and <= {2**63 - 1}"),
    (["load.seed=99999999999999999999999"], "load.seed=99999999999999999999999: allowed is a whole number >= 0 and "),
    (["load.mode=open"], "load.mode='open': allowed is one of "),
    (["+load.nope=1"], "load.nope=1: unknown; allowed is one of mode, via, concurrency, "),
    (["~load.seed"], "load.seed: missing"),
    (["algo.threshold=1.5"], "algo.threshold=1.5: allowed is a number in [0, 1], or never, or always"),
    (["algo.threshold=-0.1"], "algo.threshold=-0.1: allowed is a number in [0, 1], or never, or always"),
    (["algo.threshold=sometimes"], "algo.threshold='sometimes': allowed is a number in [0, 1], or never, or always"),
    (["workload.max_tokens=0"], "workload.max_tokens=0: allowed is a whole number >= 1, or null"),
    (["workload.max_tokens=4000"], "workload.max_tokens=4000: allowed is at most "),
    (["workload.version=x"], "workload.version='x': allowed is a whole number"),
    (["workload.embedded.split=bogus"], "workload.embedded.split='bogus': allowed is one of train, router, "),
    (["workload.embedded.min_steps=1"], "workload.embedded.min_steps=1: allowed is 2 or more"),
    (["workload.embedded.max_steps=1"], "workload.embedded.max_steps=1: allowed is min_steps (2) or more"),
    (["workload.grader=nope"], "workload.grader='nope': allowed is one of "),
    (["workload.path=nope.jsonl"], "workload.path='nope.jsonl': no such file; allowed is "),
    (["sampling.temperature=-1"], "sampling.temperature=-1: allowed is a number >= 0 and <= 100"),
    (["sampling.top_p=0"], "sampling.top_p=0: allowed is a number > 0 and <= 1"),
    (["batching=fixed", "batching.B=[1,2,3]"], "batching.B=[1, 2, 3]: allowed is 2 numbers >= 1"),
    (["batching=fixed", "batching.B=[1,0]"], "batching.B=[1, 0]: allowed is a list of: a whole number >= 1"),
    (["batching=slo", "batching.slo_ms=nan"], "batching.slo_ms="),
    (["algo=r2r", "algo.weights=null"], "algo.weights=None: allowed is a safetensors file of a trained r2r router"),
    (["algo.roles.large._target_=os.system"], "algo.roles.large._target_='os.system': allowed is an importable "),
    (["algo.roles.small._target_=pathlib.Path"], "algo.roles.small._target_='pathlib.Path': allowed is a subclass of "),
    (["algo.entry={_target_: no.such.Rule}"], "algo.entry._target_='no.such.Rule': allowed is an importable "),
    (["batching.policy=nope"], "batching.policy='nope': allowed is one of eager, fixed"),
    (["hardware.threads=0"], "hardware.threads=0: allowed is a whole number >= 1"),
    (["hardware.link={delay_ms:x}"], "hardware.link.delay_ms='x': allowed is a number"),
    (["hardware.pin=nope"], "hardware.pin='nope': allowed is auto, or a list of: a whole number >= 0"),
    (["hardware.pin=[0,99999]"], "hardware.pin=[0, 99999]: allowed on this machine are "),
    (["hardware.device=tpu"], "hardware.device='tpu': allowed on this machine is "),
    (["hardware.device=cuda:99"], "hardware.device='cuda:99': allowed on this machine is "),
    (["hardware.link={delay_ms:1,gbytes_per_s:inf}"], "hardware.link.gbytes_per_s=inf: allowed is a number > 0 and "),
    (["engine.memory_gb=0"], "engine.memory_gb=0: allowed is a number > 0"),
    (["engine.memory_gb=0.001"], "engine.memory_gb=0.001: allowed is "),
    (["engine.reserve_gb=inf"], "engine.reserve_gb=inf: allowed is a number >= 0"),
    (["engine.capacity_tokens=1"], "engine.capacity_tokens=1: allowed is a page (16) or more"),
    (["engine.capacity_tokens=17"], "engine.capacity_tokens=17: is room for 16 tokens of KV; allowed is room for "),
    (["engine.options.runner=bogus"], "engine.options.runner='bogus': allowed is one of auto, fast, hf"),
    (["engine.options={page_size: 0}"], "engine.options.page_size=0: allowed is a whole number >= 1"),
    (["engine.options.lanes=maybe"], "engine.options.lanes='maybe': allowed is true or false"),
    (["engine.options.graphs=on"], "engine.options.graphs='on': allowed is one of auto, off, or a mapping"),
    (["engine.options.graphs={tokens: []}"], "engine.options.graphs.tokens=[]: allowed is a list of one or more: "),
    (["engine.options.graphs={tokens: [2, 1]}"], "engine.options.graphs.tokens=[2, 1]: allowed is a list of rising "),
    (["engine.options.graphs={max_tokens: 64}"], "engine.options.graphs={'batch_sizes': "),
    (["+engine.options.nope=1"], "engine.options.nope=1: unknown; allowed is one of runner, page_size, "),
    (["engine=sglang", "engine.options.max_sequences=0"], "engine.options.max_sequences=0: allowed is a whole number "),
    (["engine=sglang", "engine.options.server_args={dtype: half}"], "engine.options.server_args.dtype='half': "),
    (["models.roles.large.dtype=int8"], "models.roles.large.dtype='int8': allowed is one of bfloat16, "),
    (["models.load_format=pickle"], "models.load_format='pickle': allowed is one of auto, dummy"),
    (["models.roles.large.revision=deadbeef"], "models.roles.large.revision='deadbeef': allowed with "),
    (["logger.kind=nope"], "logger.kind='nope': allowed is one of none, wandb"),
    (["~models.roles.large"], "models=tiny: has no model for the role 'large' of algo=entropy; allowed is "),
    (["~algo.roles.large"], "algo.roles=['small']: allowed are 2 or more, as EntropySmall sends requests to another"),
    (["algo=speculative", "~algo.roles.large"], "algo.roles=['small']: allowed are 2 or more"),
    (["algo=r_stitch", "~algo.roles.small", "algo.entry=large"], "algo.roles=['large']: allowed are 2 or more"),
    (["algo=glimp", "algo.max_step=0"], "algo.max_step=0: allowed is a whole number of tokens >= 1"),
    (["algo=glimp", "algo.delimiter='§'"], "algo.delimiter='§': allowed is a text that a token of the vocabulary has"),
    (["algo=glimp", "algo.answer=''"], "algo.answer='': allowed is a text of one character or more"),
    (["algo=glimp", "algo.tokenizer=nowhere"], "algo.tokenizer='nowhere': allowed is an existing folder, or a hub id"),
    (["algo=glimp", "algo.tokenizer=null"], "algo.tokenizer=None: allowed is a folder or hub id"),
    (["models.roles.large.path=no/such/folder"], "models.roles.large.path='no/such/folder': allowed is an existing "),
])  # fmt: skip
def test_what_cannot_run(composed: Compose, overrides: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        prepare(composed(*overrides))
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "said"), [
    ("", "has no rows"),
    (ROW + "{broken\n", "row 2: '{broken' is not JSON"),
    (ROW + '{"id": 2, "question": "?"}\n', "row 2: has ['id', 'question']; allowed is an object with the columns"),
    (ROW + ROW, "row 2: id='1' occurs twice"),
    ('{"id": 1, "problem": "' + "1 + " * 600 + '1?", "answer": 601}\n', "prompt of problem 1="),
])  # fmt: skip
def test_files_that_cannot_be_used(composed: Compose, tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        prepare(composed(f"workload.path={file}", "load.num_requests=2", "load.concurrency=1"))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_models_with_different_vocabularies(composed: Compose, folders: dict[str, Path]) -> None:
    with pytest.raises(InputError) as caught:
        prepare(composed(f"models.roles.large.path={folders['other']}"))
    line = str(caught.value)
    assert str(folders["small"]) in line and str(folders["other"]) in line and "their vocabularies differ: '" in line


@pytest.mark.parametrize(("models", "role"), [("tiny_medium_large", "small"), ("tiny_small_medium", "large")])
def test_trained_routers_are_refused_other_models_before_these_start(models: str, role: str) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        made = compose("config", ["algo=r2r", f"models={models}", "load.num_requests=1"])
    with pytest.raises(InputError, match=f"^models.{role}: its hidden_size is .*; allowed is {role} .hidden_size"):
        prepare(OmegaConf.to_container(made, resolve=True))  # type: ignore[arg-type]


def command(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "bench/run.py"), *overrides]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=120)


def test_the_command_says_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = command(tmp_path, "algo=entropy", "load.concurrency=0", f"hydra.run.dir={tmp_path}/run")
    assert (done.returncode, done.stdout) == (2, "")
    *before, last = done.stderr.splitlines()
    assert last == "error: load.concurrency=0: allowed is a whole number >= 1"
    assert all(line.startswith("waiting for ") for line in before)
    assert list(tmp_path.iterdir()) == []


def test_what_this_machine_lacks_keeps_no_result_from_being_read(composed: Compose) -> None:
    values = composed("hardware.device=cuda:99", "hardware.pin=[99999]", "load.num_requests=1", "load.concurrency=1")
    assert [model.device for model in prepare(values, here=False).cluster.models] == ["cuda:99"] * 2


def test_the_command_explains_a_choice_that_does_not_exist(tmp_path: Path) -> None:
    done = command(tmp_path, "algo=nope")
    assert done.returncode == 2
    assert done.stderr.startswith("error: algo=nope: allowed is one of ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_a_file_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command(tmp_path, "algo=entropy", "hydra.run.dir=file")
    assert done.returncode == 2
    assert done.stderr == "error: hydra.run.dir=file: File exists; allowed is a folder that can be written\n"


@pytest.mark.parametrize(("load", "clients"), [
    (["load.concurrency=3"], 3), (["load=batch", "load.num_requests=30"], 30),
    (["load=poisson", "load.num_requests=9"], 9),
])  # fmt: skip
@pytest.mark.parametrize("system", ["std", "std_plus", "official", "official_improved"])
def test_systems_expect_as_many_requests_at_once_as_the_load_can_send(
    composed: Compose, load: list[str], clients: int, system: str
) -> None:
    assert composed(f"system={system}", *load)["system"]["options"]["clients"] == clients
