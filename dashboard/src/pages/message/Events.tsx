/** What consumers told about a message while they worked on it. */
import { Timeline } from "@mantine/core";
import { Ago, Failure, Panel } from "../../design/parts";
import { JsonTree } from "../../design/JsonTree";
import { useLive } from "../../live/useLive";

export function Events({ params }: { params: { partitionId: string; transactionId: string } }) {
  const { data, error } = useLive("/api/v1/traces/{partitionId}/{transactionId}", { params });
  if (data?.traces.length === 0) return null;
  return (
    <Panel title="Trace events">
      <Failure error={error} />
      <Timeline bulletSize={12} lineWidth={2}>
        {data?.traces.map((event) => (
          <Timeline.Item key={event.id} title={event.event_type}>
            <div className="ls-soft">
              <Ago at={event.created_at} />
              {event.worker_id !== null && ` by ${event.worker_id}`}
            </div>
            <JsonTree value={event.data} />
          </Timeline.Item>
        ))}
      </Timeline>
    </Panel>
  );
}
