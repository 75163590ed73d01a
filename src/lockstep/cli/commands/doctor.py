"""`lockstep doctor`: checks this machine and the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from lockstep.cli.checks.database import check_database, is_postgres
from lockstep.cli.checks.findings import CheckResult, Level, fail, ok
from lockstep.cli.checks.machine import check_data_dir, check_java, check_python, check_spool_dir
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import styled
from lockstep.client import Client
from lockstep.config import Config
from lockstep.errors import Forbidden, LockstepError, SpoolAhead, Unauthorized
from lockstep.exit_codes import FAILED
from lockstep.opening import spool_directory
from lockstep.storage.postgres.embedded import running_dsn

_STYLES: dict[Level, str] = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}


@click.command()
@on_session()
@click.pass_context
def doctor(ctx: click.Context, session: Session) -> None:
    """Check this machine and the database.

    Each line reports that something is fine, or says what to do; the exit code is 1 if a check fails. The database is
    that of --dsn or LOCKSTEP_DSN, or the one that a server runs on --data-dir. With --url or LOCKSTEP_URL, the server
    is checked as well.
    """
    config = Session(dsn=session.dsn, data_dir=session.data_dir).settings()
    findings = []
    for finding in _findings(session, config):
        findings.append(finding)
        if session.format == "table":
            _show(finding)
    if session.format != "table":
        session.output.rows(findings, ())
    else:
        click.echo(_summary(findings))
    if any(finding.level == "fail" for finding in findings):
        ctx.exit(FAILED)


def _findings(session: Session, config: Config) -> Iterator[CheckResult]:
    yield check_python()
    yield check_java()
    dsn = config.dsn
    if dsn is None:
        yield from check_data_dir(config.data_dir)
        dsn = running_dsn(config.data_dir)
    elif is_postgres(dsn) and (spool_dir := spool_directory(config)) is not None:
        yield from check_spool_dir(spool_dir)
    if dsn is None:
        yield ok("database", "embedded, and not running; lockstep serve starts it")
    else:
        yield from check_database(dsn, config)
    if session.named_url is not None:
        yield from _check_server(session, session.named_url)


def _check_server(session: Session, url: str) -> Iterator[CheckResult]:
    try:
        with Session(url=url, token_file=session.token_file, ca_file=session.ca_file).client() as client:
            client.ping()
            yield ok("server", f"answers at {url}")
            yield from _check_buffer(client)
    except LockstepError as error:
        yield fail("server", error.message, f"Is it running? Start it with lockstep serve, or look at {url}.")


def _check_buffer(client: Client) -> Iterator[CheckResult]:
    try:
        buffer = client.maintenance_mode().buffer
    except (Forbidden, Unauthorized):
        return  # the caller may lack the right to see it
    if buffer is not None and buffer.bytes_lost:
        advice = "Read docs/guides/failover.md; then run lockstep maintenance accept, and the server continues."
        yield fail("buffer", f"{SpoolAhead.code}: {buffer.waiting_for}", advice)


def _show(finding: CheckResult) -> None:
    mark = styled(f"{finding.level:4}", _STYLES[finding.level])
    click.echo(f"{mark}  {finding.subject:18}  {finding.text}")
    if finding.advice:
        click.echo(f"{'':6}{'':18}  → {finding.advice}")


def _summary(findings: list[CheckResult]) -> str:
    count = Counter(finding.level for finding in findings)
    return f"{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed"
