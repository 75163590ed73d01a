"""Sessions of agents as partitions: turns of a session in order, sessions side by side, and a tool that fails.

python examples/agents/agents.py [url]       memory:// (the default), postgresql://… or http://…
"""

import sys
import threading

import lockstep
from lockstep import Client, Message, new_message

TURNS, REPLIES = "example.agent-turns", "example.agent-replies"
SESSIONS = {
    "ann": ["hello", "weather in Rome", "thanks"],
    "bob": ["hello", "weather on Mars", "thanks"],
    "cleo": ["hello", "thanks"],
}


class Tools:
    """What the agent may call. The weather service fails at the first call for Mars, as services do."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def weather(self, place: str) -> str:
        if place == "Mars" and place not in self._asked:
            self._asked.add(place)
            raise ConnectionError("the weather service does not answer")
        return f"sunny in {place}"


def reply(turn: str, tools: Tools) -> str:
    """One step of the agent. Yours would ask a model, with the history of the session."""
    question, _, place = turn.partition(" in ")
    if not place:
        question, _, place = turn.partition(" on ")
    return tools.weather(place) if question == "weather" else f"{turn} to you"


def run(client: Client) -> None:
    tools, missing = Tools(), sum(map(len, SESSIONS.values()))
    lock = threading.Lock()

    @client.worker(TURNS, group="agent", concurrency=3)
    def step(message: Message) -> None:
        nonlocal missing
        text = reply(message.payload, tools)
        # The reply and the end of the turn are one transaction: a turn that is repeated is not answered twice.
        with client.transaction() as transaction:
            transaction.ack(message)
            transaction.push(REPLIES, {"turn": message.payload, "reply": text}, partition=message.partition)
        with lock:
            missing -= 1
            if not missing:
                client.stop()

    client.run()


def main(url: str) -> None:
    with lockstep.connect(url) as client:
        for queue in (TURNS, REPLIES):
            client.delete_queue(queue)  # what an earlier run left
        client.configure(TURNS, retry_limit=5, retry_delay_ms=100)
        client.push_many(
            [new_message(TURNS, turn, partition=session) for session, turns in SESSIONS.items() for turn in turns]
        )
        run(client)
        said: dict[str, list[str]] = {session: [] for session in SESSIONS}
        for message in client.pop(REPLIES, batch=100, partitions=10, auto_ack=True):
            said[message.partition].append(message.payload["reply"])
    for session, replies in said.items():
        print(f"{session}: {', '.join(replies)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory://")
