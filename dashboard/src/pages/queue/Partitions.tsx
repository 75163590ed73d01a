import { SegmentedControl, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { Link } from "@tanstack/react-router";
import { Search } from "lucide-react";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { count, exact } from "../../design/format";
import { Ago, Empty, Failure, Filters, Loading, Panel, Toned } from "../../design/parts";
import { useMore } from "../../design/useMore";
import { routes } from "../../router";
import { one } from "../../search";
import { HotPartitions } from "./HotPartitions";
import { LeasedPartitions } from "./LeasedPartitions";
import { StuckPartitions } from "./StuckPartitions";

type PartitionRow = Schemas["PartitionRow"];

const PAGE = 200;
const WAYS = ["all", "hot", "stuck", "leased"] as const;
const column = createColumnHelper<PartitionRow>();
const COLUMNS = [
  column.accessor("name", {
    header: "Partition",
    cell: ({ row: { original: one } }) => (
      <Link to="/messages" search={{ queue: one.queue, partition: one.name, span: "all" }} className="ls-mono">
        {one.name}
      </Link>
    ),
  }),
  column.accessor("stats.pending", { header: "Pending", cell: (one) => count(one.getValue()), meta: { right: true } }),
  column.accessor("stats.processing", {
    header: "In flight",
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("stats.deadLetter", {
    header: "Dead",
    cell: (one) => <Toned tone={(one.getValue() ?? 0) > 0 ? "dead" : undefined}>{count(one.getValue())}</Toned>,
    meta: { right: true },
  }),
  column.accessor("stats.total", {
    header: "Stored",
    cell: (one) => exact(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("oldestMessage", {
    header: "Oldest",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true, wide: true },
  }),
  column.accessor("newestMessage", {
    header: "Newest",
    cell: (one) => <Ago at={one.getValue()} />,
    meta: { right: true },
  }),
];

export function Partitions({ queue }: { queue: string }) {
  const { prefix, only } = routes.queue.useSearch();
  const navigate = routes.queue.useNavigate();
  const way = one(only, WAYS, "all");
  const type = useDebouncedCallback((value: string) => {
    void navigate({ search: (before) => ({ ...before, prefix: value || undefined }), replace: true });
  }, 200);
  return (
    <>
      <Filters label="Find partitions">
        <SegmentedControl
          aria-label="Which partitions"
          value={way}
          onChange={(value) => void navigate({ search: (before) => ({ ...before, only: value }) })}
          data={[
            { value: "all", label: "All" },
            { value: "hot", label: "Hot" },
            { value: "stuck", label: "Stuck" },
            { value: "leased", label: "Leased" },
          ]}
        />
        {way === "all" && (
          <TextInput
            defaultValue={prefix}
            onChange={(event) => type(event.currentTarget.value)}
            placeholder="How the name begins"
            aria-label="Search partitions"
            leftSection={<Search size={15} />}
            w={260}
          />
        )}
      </Filters>
      {way === "all" && <AllPartitions queue={queue} prefix={prefix} />}
      {way === "hot" && <HotPartitions queue={queue} />}
      {way === "stuck" && <StuckPartitions queue={queue} />}
      {way === "leased" && <LeasedPartitions queue={queue} />}
    </>
  );
}

/** By name, page by page as one scrolls: a queue may have a million. */
function AllPartitions({ queue, prefix }: { queue: string; prefix: string | undefined }) {
  const {
    rows: data,
    error,
    onEnd,
  } = useMore({
    path: "/api/v1/resources/partitions",
    asked: (after) => ({ query: { queue, prefix, after, limit: PAGE } }),
    rowsOf: (page) => page.partitions,
    nextOf: (page) => (page.partitions.length < PAGE ? undefined : page.partitions.at(-1)?.name),
  });
  return (
    <Panel flush>
      <Failure error={error} />
      {data === undefined ? (
        error === null && <Loading rows={8} />
      ) : (
        <DataTable
          rows={data}
          columns={COLUMNS}
          rowId={(partition) => partition.id}
          label="Partitions"
          height={640}
          onEnd={onEnd}
          empty={
            <Empty title={prefix === undefined ? "No partitions yet" : `No partition begins with “${prefix}”`}>
              <p>A partition is there from the first push to it on.</p>
            </Empty>
          }
        />
      )}
    </Panel>
  );
}
