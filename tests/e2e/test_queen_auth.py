"""The public Python client of the protocol on a server that asks who callers are."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import jwt
import pytest
from queen import Queen

from support.server import ServerProcess, running_server

SECRET = "a secret of more than 64 bytes, because that is what the longest hash wants"


@pytest.fixture(scope="module")
def asking_server(tmp_path_factory: pytest.TempPathFactory, module_dsn: str) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("asking")
    with running_server(module_dsn, directory, auth="required", auth_jwt_secret=SECRET) as server:
        yield server


def _token(**claims: object) -> str:
    return jwt.encode({"sub": "queen", "exp": time.time() + 600, **claims}, SECRET, "HS256")


async def test_client_with_a_token_configures_pushes_pops_and_acks(asking_server: ServerProcess, queue: str) -> None:
    async with Queen(url=asking_server.url, bearer_token=_token(role="read-write")) as queen:
        await queen.queue(queue).create()
        await queen.queue(queue).push([{"data": 1}])
        [message] = await queen.queue(queue).pop()
        assert message["producerSub"] == "queen"
        assert (await queen.ack(message, True))["success"]


@pytest.mark.parametrize("token", [None, _token(role="read-only"), "garbage"])
async def test_client_without_the_right_is_refused(asking_server: ServerProcess, queue: str, token: str | None) -> None:
    async with Queen(url=asking_server.url, bearer_token=token, retry_attempts=1) as queen:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await queen.queue(queue).push([{"data": 1}])
    assert refused.value.response.status_code in (401, 403)
