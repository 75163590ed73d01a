import { Figure, Figures } from "../../design/Figure";
import { ago, count, duration } from "../../design/format";
import type { QueueDetail } from "./QueuePage";

export function QueueFigures({ queue }: { queue: QueueDetail }) {
  const { messages, config } = queue;
  const limit = config.maxSize ?? 0;
  const counted = queue.figuresAt === null ? undefined : `counted ${ago(queue.figuresAt)}`;
  const full = limit > 0 && messages.pending !== null && messages.pending >= limit * 0.9;
  return (
    <Figures>
      <Figure
        label="Pending"
        value={count(messages.pending)}
        tone={full ? "lagging" : undefined}
        hint={limit > 0 ? `of at most ${count(limit)}` : (counted ?? "of the slowest group")}
      />
      <Figure
        label="Oldest unread"
        value={queue.lagSeconds === 0 ? "–" : duration(queue.lagSeconds)}
        tone={(queue.lagSeconds ?? 0) > 300 ? "lagging" : undefined}
      />
      <Figure label="In flight" value={count(messages.processing)} hint="under a live lease" />
      <Figure
        label="Dead letters"
        value={count(messages.deadLetter)}
        tone={(messages.deadLetter ?? 0) > 0 ? "dead" : undefined}
        hint={(messages.deadLetter ?? 0) > 0 ? "look at them" : "none"}
        to="/dead-letters"
        search={{ queue: queue.name }}
      />
      <Figure
        label="Stored"
        value={count(messages.total)}
        hint={`${count(messages.completed)} done by all groups`}
        to="/messages"
        search={{ queue: queue.name, span: "all" }}
      />
      <Figure
        label="Partitions"
        value={count(queue.partitions)}
        hint="look at them"
        to={`/queues/${encodeURIComponent(queue.name)}`}
        search={{ tab: "partitions" }}
      />
    </Figures>
  );
}
