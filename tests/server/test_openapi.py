"""The server against its own OpenAPI document: requests that schemathesis makes of it, allowed and not."""
from __future__ import annotations

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.server.local import LocalServer

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.timeout(300)
def test_every_operation_keeps_what_the_document_says(local: LocalServer, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{local.url}/openapi.json")
    answered: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # there is nothing to get wrong

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def holds(case: schemathesis.Case) -> None:
            response = case.call(timeout=60)
            case.validate_response(response, checks=CHECKS)
            answered[response.status_code] += 1

        holds()
    expected = 200 if mode is GenerationMode.POSITIVE else 400
    assert answered[expected] > 20, answered
