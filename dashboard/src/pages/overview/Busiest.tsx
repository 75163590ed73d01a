import { Link } from "@tanstack/react-router";
import { Empty, Code, Failure, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { QueueTable } from "../queues/QueueTable";

export function Busiest() {
  const { data, error } = useLive("/api/v1/status/queues", { query: { sort: "pending", limit: 8, recent: true } });
  return (
    <Panel title="Queues with the most pending" flush actions={<Link to="/queues">All queues</Link>}>
      <Failure error={error} />
      {data !== undefined && <QueueTable rows={data.queues} label="Busiest queues" empty={<NoQueues />} />}
    </Panel>
  );
}

/** What to do with a server that has nothing yet. */
export function NoQueues() {
  const push = `curl -X POST ${location.origin}/api/v1/push \\
  -d '{"items":[{"queue":"hello","payload":{"n":1}}]}'`;
  return (
    <Empty title="There are no queues yet">
      <p>The first push to a queue makes it. Try this in a shell, and watch this page:</p>
      <Code>{push}</Code>
    </Empty>
  );
}
