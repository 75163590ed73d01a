"""Every option in the table over HTTP: under our name and the protocol's, in camelCase and in snake_case."""

from __future__ import annotations

import pytest

from lockstep.core.policy import OPTIONS
from support.http import Http
from support.options import another


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@pytest.mark.parametrize("name", OPTIONS)
def test_option_is_set_under_each_of_its_names_and_read_back(http: Http, queue: str, name: str) -> None:
    assert http.post("/api/v1/configure", {"queue": f"{queue}-dead"}).status == 200
    value, wire = another(name, dead_queue=f"{queue}-dead"), OPTIONS[name].wire or name
    for number, given in enumerate(sorted({name, _camel(name), wire, _camel(wire)})):
        one = f"{queue}-{number}"
        answer = http.post("/api/v1/configure", {"queue": one, "options": {given: value}})
        if name == "encryption":  # the server has no key
            assert answer.json()["code"] == "encryption_unavailable"
            continue
        assert answer.status == 200, answer.body
        assert answer.json()["options"][_camel(wire)] == value
        assert http.get(f"/api/v1/status/queues/{one}").json()["queue"]["config"][_camel(wire)] == value
