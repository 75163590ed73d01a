"""Strings that mean something to others, in every name field: they come back as they are, or are refused."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from support.http import Http

STRINGS = [
    "'; drop schema lockstep cascade; --",
    '"; select pg_sleep(60); --',
    "' or '1'='1",
    "\\'; --",
    "$$; drop table lockstep.queue; $$",
    "%s%n%(x)s{0}{x}${x}",
    "a%_b",
    "*",
    "{{7*7}}<%= 7*7 %>",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0",
    "`id`$(id);|&& id",
    "a\\..\\b",
    "null",
    "__proto__",
    "\u202eabc\ufeff",
    "ｓｅｌｅｃｔ",
    "e\u0301 \u00e9",
    "\U0001f600" * 50,
]
REFUSED = ["", "a\0b", "a\r\nX-Injected: 1", "a\x1b[31mb", "\x7f", "a\u2028b", "x" * 256]


@pytest.mark.parametrize("text", STRINGS)
def test_text_in_every_name_comes_back_as_it_is(http: Http, queue: str, text: str) -> None:
    name = f"{queue}.{text}"
    item = {"queue": name, "partition": text, "payload": text, "transactionId": text}
    [pushed] = http.post("/api/v1/push", {"items": [item]}).json()
    assert (pushed["queueName"], pushed["partition"], pushed["transaction_id"]) == (name, text, text)
    path = f"/api/v1/pop/queue/{quote(name, safe='')}/partition/{quote(text, safe='')}"
    popped = http.get(path, consumerGroup=text, subscriptionMode="all").json()
    [message] = popped["messages"]
    assert (message["queue"], message["partition"], message["data"]) == (name, text, text)
    ack = {
        "transactionId": text,
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "consumerGroup": text,
        "status": "failed",
        "error": text,
    }
    assert http.post("/api/v1/ack", ack).json()[0]["success"]
    trace = {"transactionId": text, "partitionId": message["partitionId"], "data": {text: text}, "traceNames": [text]}
    assert http.post("/api/v1/traces", {**trace, "eventType": text}).status == 201
    [traced] = http.get(f"/api/v1/traces/by-name/{quote(text, safe='')}").json()["traces"][-1:]
    assert traced["event_type"] == text
    listed = http.get("/api/v1/resources/queues").json()["queues"]
    assert [one["name"] for one in listed if one["name"].startswith(queue)] == [name]
    groups = http.get("/api/v1/consumer-groups").json()
    assert text in [group["name"] for group in groups if name in group["topics"]]
    assert http.delete(f"/api/v1/resources/queues/{quote(name, safe='')}").json()["existed"]


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("field", ["queue", "partition", "transactionId", "traceId"])
def test_text_that_is_no_name_is_refused(http: Http, queue: str, field: str, text: str) -> None:
    item = {"queue": queue, "partition": "p", "payload": 1, field: text}
    answer = http.post("/api/v1/push", {"items": [item]})
    if field in ("partition", "transactionId", "traceId") and text == "":
        assert answer.status in (201, 400)  # as if it had not been given
    elif field == "transactionId" and answer.status == 201:
        assert answer.json()[0]["transaction_id"] == text
    else:
        assert answer.status == 400, answer.body
    assert "x-injected" not in answer.headers


@pytest.mark.parametrize("text", STRINGS + REFUSED)
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/resources/queues/{}",
        "/api/v1/messages?queue={}",
        "/api/v1/dlq?queue={}&consumerGroup={}",
        "/api/v1/traces/by-name/{}",
        "/api/v1/consumer-groups/{}",
        "/api/v1/operations/{}",
        "/api/v1/messages/1/{}",
        "/api/v1/status/queues?search={}",
        "/api/v1/resources/queues?namespace={}&task={}",
    ],
)
def test_text_in_paths_and_queries_does_nothing(http: Http, path: str, text: str) -> None:
    answer = http.send("GET", path.replace("{}", quote(text, safe="")))
    assert answer.status < 500, answer.body
    assert "x-injected" not in answer.headers
    assert answer.headers["content-type"].startswith("application/json")
