"""What somebody does in the dashboard happens, and the page shows it without a reload."""

from __future__ import annotations

import re
import shlex
import subprocess
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from support.http import Http
from support.pages import Dashboard


@pytest.fixture
def queue() -> str:
    return f"acts.{uuid4().hex[:8]}"


def pop(http: Http, queue: str, **query: object) -> list[dict[str, object]]:
    answer = http.get(f"/api/v1/pop/queue/{queue}", **query)
    return [] if answer.status == 204 else answer.json()["messages"]


def die(http: Http, queue: str, *payloads: object) -> None:
    http.push(queue, *payloads)
    for _ in payloads:
        for message in http.pop(queue, consumerGroup="g", batch=1)["messages"]:
            http.ack(message, "dlq", error="it broke")


def test_push_shows_at_once(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1)
    page = dashboard.open(f"/messages?queue={queue}&live=true")
    expect(page.locator("tbody tr")).to_have_count(1)
    dashboard.http.push(queue, 2, partition="another")
    expect(page.get_by_text("another")).to_be_visible(timeout=15_000)


def test_lists_follow_what_happens_elsewhere(dashboard: Dashboard, queue: str) -> None:
    die(dashboard.http, queue, 1)
    page = dashboard.open(f"/dead-letters?queue={queue}")
    expect(page.locator("tbody tr")).to_have_count(1)
    die(dashboard.http, queue, 2)
    expect(page.locator("tbody tr")).to_have_count(2)
    dashboard.open(f"/schedules?queue={queue}")
    expect(page.get_by_text("No message waits for its time")).to_be_visible()
    dashboard.http.push(queue, 1, delaySeconds=3600)
    expect(page.locator("tbody tr")).to_have_count(1)


def test_messages_are_listed_from_a_seq_on(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, *range(9), partition="p")
    page = dashboard.open(f"/messages?queue={queue}&partition=p")
    page.get_by_label("From seq").fill("7")
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page).to_have_url(re.compile("seq=.*7"))
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_message_is_copied_as_curl(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, {"it's": 1})
    [row] = dashboard.http.get("/api/v1/messages", queue=queue).json()["messages"]
    dashboard.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = dashboard.open(f"/messages/{row['partitionId']}/{row['transactionId']}")
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    assert subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=60).stdout
    stored = dashboard.http.get("/api/v1/messages", queue=queue).json()["messages"]
    assert [message["seq"] for message in stored] == [1, 2]


def test_test_message_is_pushed(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1)
    page = dashboard.open(f"/queues/{queue}")
    page.get_by_role("button", name="Push a message").click()
    page.get_by_label("Payload").fill('{"from": "a person"}')
    page.get_by_role("textbox", name="Partition").fill("by hand")
    page.get_by_role("button", name="Push", exact=True).click()
    expect(page.get_by_text(f"A message was pushed to {queue}.")).to_be_visible()
    assert [message["data"] for message in pop(dashboard.http, queue, batch=10, partitions=10)] == [
        1,
        {"from": "a person"},
    ]


def test_option_out_of_range_is_refused_and_one_in_range_is_kept(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1)
    page = dashboard.open(f"/queues/{queue}?tab=options")
    field = page.get_by_label("Lease time", exact=True)
    field.fill("0")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    field.fill("77")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text(f"1 option of {queue} changed.")).to_be_visible()
    assert dashboard.http.get(f"/api/v1/status/queues/{queue}").json()["queue"]["config"]["leaseTime"] == 77


def test_all_dead_letters_of_a_queue_are_redriven(dashboard: Dashboard, queue: str) -> None:
    die(dashboard.http, queue, 1, 2, 3)
    page = dashboard.open(f"/dead-letters?queue={queue}")
    expect(page.get_by_text("3 dead letters")).to_be_visible()
    page.get_by_role("button", name="Redrive all…").click()
    page.get_by_role("button", name="Redrive them").click()
    expect(page.get_by_text("3 messages pushed again.")).to_be_visible()
    expect(page.get_by_text("No dead letters")).to_be_visible()
    assert len(pop(dashboard.http, queue, consumerGroup="g", batch=10)) == 3


def test_selected_dead_letters_are_purged_once_the_word_is_typed(dashboard: Dashboard, queue: str) -> None:
    die(dashboard.http, queue, 1, 2)
    page = dashboard.open(f"/dead-letters?queue={queue}")
    page.get_by_label("Select the dead letter of Default").first.check()
    page.get_by_role("button", name="Purge the selected…").click()
    purge = page.get_by_role("button", name="Purge them")
    expect(purge).to_be_disabled()
    page.get_by_label("Type purge to confirm").fill("purge")
    purge.click()
    expect(page.get_by_text("1 dead letter removed.")).to_be_visible()
    assert dashboard.http.get("/api/v1/dlq", queue=queue).json()["total"] == 1


def test_dead_letter_is_mended_and_pushed(dashboard: Dashboard, queue: str) -> None:
    die(dashboard.http, queue, {"total": -1})
    [letter] = dashboard.http.get("/api/v1/dlq", queue=queue).json()["messages"]
    page = dashboard.open(f"/dead-letters?id={letter['id']}")
    page.get_by_role("button", name="Edit and redrive").click()
    page.get_by_label("Payload").fill('{"total": 1}')
    page.get_by_role("button", name="Push the mended message").click()
    expect(page.get_by_text(f"The mended message is pushed to {queue}.")).to_be_visible()
    assert [message["data"] for message in pop(dashboard.http, queue, consumerGroup="g", batch=9)] == [{"total": 1}]
    assert dashboard.http.get("/api/v1/dlq", queue=queue).json()["total"] == 0


def test_seek_says_what_it_will_do_and_does_it(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1, 2, 3)
    assert len(pop(dashboard.http, queue, consumerGroup="g", batch=2, autoAck="true")) == 2
    page = dashboard.open(f"/groups/g?queue={queue}")
    page.get_by_role("button", name="Seek").click()
    page.get_by_text("To the beginning").click()
    preview = page.get_by_role("dialog").get_by_role("status")
    expect(preview).to_contain_text("2 messages will be read again, and 0 messages skipped")
    page.get_by_role("button", name="Move the group").click()
    expect(page.get_by_text("g was moved in 1 partition.")).to_be_visible()
    assert len(pop(dashboard.http, queue, consumerGroup="g", batch=9)) == 3


def test_group_is_paused_and_goes_on(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1, 2)
    assert len(pop(dashboard.http, queue, consumerGroup="g", autoAck="true")) == 1
    page = dashboard.open(f"/groups/g?queue={queue}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 message will wait")
    page.get_by_role("button", name="Pause it").click()
    expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    assert pop(dashboard.http, queue, consumerGroup="g") == []
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Paused", exact=True)).to_have_count(0)
    assert len(pop(dashboard.http, queue, consumerGroup="g")) == 1


def test_lease_is_released(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1)
    assert len(pop(dashboard.http, queue, consumerGroup="g")) == 1
    page = dashboard.open(f"/groups/g?queue={queue}&tab=leases")
    page.get_by_role("button", name="Release").click()
    page.get_by_role("button", name="Release it").click()
    expect(page.get_by_text("Nobody holds a lease")).to_be_visible(timeout=15_000)
    assert len(pop(dashboard.http, queue, consumerGroup="g")) == 1


def test_scheduled_message_is_pushed_now_or_cancelled(dashboard: Dashboard, queue: str) -> None:
    for key in ("early", "never"):
        dashboard.http.push(queue, key, delaySeconds=3600, scheduleKey=key)
    page = dashboard.open(f"/schedules?queue={queue}")
    page.get_by_role("row").filter(has_text="never").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_text("The message is cancelled.")).to_be_visible()
    page.get_by_role("row").filter(has_text="early").get_by_role("button", name="Push now").click()
    page.get_by_role("button", name="Push it").click()
    expect(page.get_by_text(f"The message goes to {queue} now.")).to_be_visible()
    found = pop(dashboard.http, queue, wait="true", timeout=20_000, batch=9)
    assert [message["data"] for message in found] == ["early"]


def test_recurring_message_is_made_run_and_switched_off(dashboard: Dashboard, queue: str) -> None:
    page = dashboard.open("/schedules?tab=cron")
    page.get_by_role("button", name="New", exact=True).click()
    name = f"job-{uuid4().hex[:8]}"
    page.get_by_label("Name").fill(name)
    page.get_by_label("Queue").fill(queue)
    page.get_by_label("Expression").fill("0 0 1 1 *")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text=name)
    expect(row).to_be_visible()
    row.get_by_role("button", name="Run now").click()
    page.get_by_role("button", name="Push it").click()
    expect(page.get_by_text(f"{name} was pushed to {queue}.")).to_be_visible()
    assert len(pop(dashboard.http, queue, wait="true", timeout=20_000)) == 1
    row.get_by_label(f"Whether {name} is on").click(force=True)
    expect(page.get_by_text(f"{name} is off.")).to_be_visible()
    assert dashboard.http.get(f"/api/v1/crons/{name}").json()["enabled"] is False


def test_maintenance_mode_is_switched_on_and_off(dashboard: Dashboard) -> None:
    page = dashboard.open("/load")
    page.get_by_role("button", name="Switch on…").last.click()
    page.get_by_label("Type maintenance to confirm").fill("maintenance")
    page.get_by_role("button", name="Switch it on").click()
    expect(page.get_by_text("Find nothing")).to_be_visible()
    assert dashboard.http.get("/api/v1/system/maintenance").json()["popMaintenanceMode"] is True
    page.get_by_role("button", name="Switch off").click()
    expect(page.get_by_text("Deliver messages")).to_be_visible()
    assert dashboard.http.get("/api/v1/system/maintenance").json()["popMaintenanceMode"] is False


def test_message_is_deleted_and_one_that_is_done_pushed_again(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, "done", transactionId="first")
    dashboard.http.push(queue, "waits", transactionId="second", partition="other")
    pop(dashboard.http, queue, autoAck="true")
    rows = dashboard.http.get("/api/v1/messages", queue=queue).json()["messages"]
    done = next(row for row in rows if row["status"] == "completed")
    page = dashboard.open(f"/messages/{done['partitionId']}/{done['transactionId']}")
    page.get_by_role("button", name="Push again").click()
    page.get_by_role("button", name="Push it").click()
    expect(page.get_by_text("Pushed again as message 2")).to_be_visible()
    waiting = next(row for row in rows if row["status"] == "pending")
    dashboard.open(f"/messages/{waiting['partitionId']}/{waiting['transactionId']}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_label(f"Type {waiting['partition']} to confirm").fill(waiting["partition"])
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("The message is removed.")).to_be_visible()
    assert len(dashboard.http.get("/api/v1/messages", queue=queue).json()["messages"]) == 2


def test_queue_is_found_by_the_keyboard_alone(dashboard: Dashboard) -> None:
    page = dashboard.open("/groups")
    page.keyboard.press("/")
    expect(page.get_by_placeholder("A page, a queue, a group or an id")).to_be_focused()
    page.keyboard.type("outbox")
    expect(page.get_by_role("button", name="mail.outbox")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("mail.outbox")


def test_whatever_has_a_name_or_an_id_is_found(dashboard: Dashboard) -> None:
    page = dashboard.open("/queues")
    trace = dashboard.shop.traces[0]
    finds = {
        "carrier": "Group on shop.shipments",
        "nightly": "Recurring message for",
        trace: "The message with this id",
    }
    for typed, found in finds.items():
        page.keyboard.press("/")
        page.get_by_label("Search", exact=True).fill(typed)
        expect(page.get_by_role("dialog")).to_contain_text(found)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_label("Search", exact=True).fill(trace)
    page.get_by_role("button", name="The trace with this id").click()
    expect(page.get_by_role("main")).to_contain_text("order.placed")


def test_queue_is_deleted_by_the_keyboard_alone(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.push(queue, 1, 2)
    page = dashboard.open(f"/queues/{queue}")
    page.get_by_role("button", name="More").focus()
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Delete the queue…").press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 stored messages")
    expect(page.get_by_label(f"Type {queue} to confirm")).to_be_focused()
    page.keyboard.type(queue)
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Queue {queue} is deleted.")).to_be_visible()
    assert dashboard.http.get(f"/api/v1/status/queues/{queue}").status == 404


def test_refusal_is_shown_in_the_words_of_the_server(dashboard: Dashboard, queue: str) -> None:
    dashboard.http.post("/api/v1/configure", {"queue": queue, "options": {"maxSize": 1}})
    dashboard.http.push(queue, 1)
    page = dashboard.open(f"/queues/{queue}")
    page.get_by_role("button", name="Push a message").click()
    page.get_by_role("button", name="Push", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("holds 1 of at most 1 pending messages")
    dashboard.watch.errors.clear()  # the browser says that the answer had the status 429
