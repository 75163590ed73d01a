/** What consumers are at work on, with the time they have left, and a way to take it from them. */
import { Button } from "@mantine/core";
import { useState } from "react";
import { ApiError, send, type Schemas } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { duration, exact, several } from "../../design/format";
import { Ago, Bar, Empty, Failure, Loading, Panel } from "../../design/parts";
import { useNow } from "../../design/useNow";
import { useLive } from "../../live/useLive";
import { useMayOn } from "../../live/useWho";
import { groupName } from "../groups/words";

type LeaseRow = Schemas["LeaseRow"];

const column = createColumnHelper<LeaseRow>();

interface LeasedProps {
  queue?: string;
  group?: string;
}

export function LeasedPartitions({ queue, group }: LeasedProps) {
  const [releasing, setReleasing] = useState<LeaseRow | null>(null);
  const may = useMayOn();
  const { data, error } = useLive("/api/v1/leases", { query: { queue, limit: 500 } });
  const rows = data?.leases.filter((lease) => group === undefined || lease.consumerGroup === group);
  const columns = [
    column.accessor("partition", {
      header: "Partition",
      cell: (one) => <span className="ls-mono">{one.getValue()}</span>,
    }),
    ...(queue === undefined ? [column.accessor("queue", { header: "Queue" })] : []),
    ...(group === undefined
      ? [column.accessor("consumerGroup", { header: "Group", cell: (one) => groupName(one.getValue()) })]
      : []),
    column.display({ id: "seqs", header: "Messages", cell: ({ row }) => seqs(row.original), meta: { right: true } }),
    column.accessor("attempt", { header: "Attempt", meta: { right: true, wide: true } }),
    column.accessor("leasedAt", {
      header: "Taken",
      cell: (one) => <Ago at={one.getValue()} />,
      meta: { right: true, wide: true },
    }),
    column.accessor("expiresAt", { header: "Time left", cell: ({ row }) => <Left lease={row.original} /> }),
    column.display({
      id: "release",
      header: "",
      cell: ({ row }) =>
        may("pop", row.original.queue) && (
          <Button size="compact-xs" variant="default" onClick={() => setReleasing(row.original)}>
            Release
          </Button>
        ),
      meta: { right: true },
    }),
  ];
  return (
    <Panel title="Live leases" flush>
      <Failure error={error} />
      {rows === undefined && error === null && <Loading />}
      {rows !== undefined && (
        <DataTable
          rows={rows}
          columns={columns}
          rowId={(lease) => `${lease.leaseId} ${lease.partitionId} ${lease.firstSeq}`}
          label="Live leases"
          empty={
            <Empty title="Nobody holds a lease">
              <p>A consumer that pops messages holds a lease on them until it acknowledges them, or the lease ends.</p>
            </Empty>
          }
        />
      )}
      {releasing !== null && <Release lease={releasing} onClose={() => setReleasing(null)} />}
    </Panel>
  );
}

function seqs(lease: LeaseRow): string {
  return lease.firstSeq === lease.lastSeq ? exact(lease.firstSeq) : `${exact(lease.firstSeq)}–${exact(lease.lastSeq)}`;
}

function Left({ lease }: { lease: LeaseRow }) {
  const now = useNow();
  const [from, to] = [Date.parse(lease.leasedAt), Date.parse(lease.expiresAt)];
  const left = Math.max((to - now) / 1000, 0);
  const part = (to - now) / Math.max(to - from, 1);
  return (
    <span style={{ display: "flex", alignItems: "center", gap: 10 }}>
      <span style={{ flex: 1 }}>
        <Bar part={part} tone={part < 0.2 ? "lagging" : undefined} label={`${Math.round(part * 100)} per cent left`} />
      </span>
      <span className="ls-number">{duration(Math.round(left))}</span>
    </span>
  );
}

function Release({ lease, onClose }: { lease: LeaseRow; onClose: () => void }) {
  async function act(): Promise<string> {
    const answer = await send("post", "/api/v1/lease/{leaseId}/ack", {
      params: { leaseId: lease.leaseId },
      body: { status: "released", partitionId: lease.partitionId },
    });
    if (!answer.success) throw new ApiError(409, "not_released", answer.error ?? "The lease is not live any more.");
    return `The lease on ${lease.partition} is released.`;
  }
  const messages = lease.lastSeq - lease.firstSeq + 1;
  return (
    <Confirm title="Release the lease" verb="Release it" act={act} onClose={onClose}>
      <strong>{several(messages, "message")}</strong> of partition <strong>{lease.partition}</strong> will be delivered
      again at once, without counting as a failure. Whoever works on them now cannot acknowledge them any more.
    </Confirm>
  );
}
