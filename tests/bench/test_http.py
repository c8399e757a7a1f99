"""The driver's HTTP client, against a server in this process: the same tokens, models and counts as without HTTP."""
from __future__ import annotations

import pytest

from bench.config import validate
from bench.systems import serve
from bench.systems.http import HttpService
from tests.bench.conftest import Compose
from tests.serve import Job
from tests.serve import serve as run
from tests.server.local import serving
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import InputError, SamplingParams


def test_what_comes_over_http_is_what_the_front_end_says() -> None:
    jobs: list[Job] = [("toy", [5, 6, i], SamplingParams(i, 30, temperature=(0.0, 2.0)[i % 2])) for i in range(8)]
    with serving() as local:
        service = HttpService(local.url, local.server.frontend.models)
        records = run(service, jobs, 4)  # type: ignore[arg-type]
        service.close()
        for (name, prompt, sampling), record in zip(jobs, records, strict=True):
            body = {"prompt": prompt, "model": name, "max_tokens": 30, "temperature": sampling.temperature,
                    "seed": sampling.seed, "return_routing": True}
            choice = local.client.post("/v1/completions", json=body).json()["choices"][0]
            assert record.token_ids == choice["routing"]["token_ids"] and record.token_ids
            assert record.token_models == choice["routing"]["token_models"]
            assert record.finish_reason == choice["finish_reason"]
            counts = choice["routing"]["handoffs"], choice["routing"]["discarded"]
            assert (record.handoffs, record.discarded) == counts


@pytest.mark.parametrize("system", ["reference", "eager_async"])
def test_other_systems_have_no_http(composed: Compose, system: str) -> None:
    config = validate(composed("load.via=http", f"system={system}"))
    with pytest.raises(InputError, match=rf"load\.via=http: allowed with system=tokenrouter, not with {system}"):
        serve(config, ClusterSpec(models=[], algorithms=[]))
