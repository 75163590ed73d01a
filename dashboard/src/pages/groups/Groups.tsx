import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { Select } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { createColumnHelper, DataTable } from "../../design/DataTable";
import { FilterText } from "../../design/FilterText";
import { count, several } from "../../design/format";
import { Empty, Failure, Filters, Loading, Page, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { router, routes } from "../../router";
import { one } from "../../search";
import { Age } from "../queues/QueueTable";
import { groupName, GroupState } from "./words";

type GroupRow = Schemas["GroupRow"];

const SHOWN = ["all", "lagging", "working"] as const;
const column = createColumnHelper<GroupRow>();
const COLUMNS = [
  column.accessor("name", {
    header: "Group",
    cell: ({ row: { original: group } }) => (
      <Link to="/groups/$group" params={{ group: group.name }} search={{ queue: group.queueName }}>
        <strong>{groupName(group.name)}</strong>
      </Link>
    ),
  }),
  column.accessor("queueName", {
    header: "Queue",
    cell: (one) => (
      <Link to="/queues/$queue" params={{ queue: one.getValue() }}>
        {one.getValue()}
      </Link>
    ),
  }),
  column.display({ id: "state", header: "State", cell: ({ row }) => <GroupState group={row.original} /> }),
  column.accessor("totalLag", {
    header: "Lag",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true },
  }),
  column.accessor("maxTimeLag", {
    header: "Oldest",
    sortDescFirst: true,
    cell: (one) => <Age seconds={one.getValue()} />,
    meta: { right: true },
  }),
  column.accessor("inFlight", {
    header: "In flight",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("members", {
    header: "Leases",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
  column.accessor("partitionsWithLag", {
    header: "Partitions with lag",
    sortDescFirst: true,
    cell: (one) => count(one.getValue()),
    meta: { right: true, wide: true },
  }),
];

export function Groups() {
  const { search, show } = routes.groups.useSearch();
  const navigate = routes.groups.useNavigate();
  const { data, error } = useLive("/api/v1/consumer-groups");
  const shown = one(show, SHOWN, "all");
  const rows = useMemo(() => matching(data ?? [], search, shown), [data, search, shown]);
  return (
    <Page title="Groups" note={data && several(rows.length, "group of a queue", "groups of queues")}>
      <Filters>
        <FilterText
          label="Group or queue"
          value={search}
          onType={(typed) => void navigate({ search: (before) => ({ ...before, search: typed }), replace: true })}
          w={260}
        />
        <Select
          label="Show"
          size="sm"
          allowDeselect={false}
          data={[
            { value: "all", label: "All" },
            { value: "lagging", label: "With lag" },
            { value: "working", label: "At work" },
          ]}
          value={shown}
          onChange={(value) => void navigate({ search: (before) => ({ ...before, show: value ?? undefined }) })}
          w={140}
        />
      </Filters>
      <Failure error={error} />
      <Panel flush>
        {data === undefined && error === null && <Loading rows={8} />}
        {data !== undefined && (
          <DataTable
            rows={rows}
            columns={COLUMNS}
            rowId={(group) => `${group.name} ${group.queueName}`}
            label="Groups"
            height={680}
            onOpen={({ name, queueName }) =>
              void router.navigate({ to: "/groups/$group", params: { group: name }, search: { queue: queueName } })
            }
            empty={
              <Empty title={data.length === 0 ? "No group has read anything yet" : "No group matches"}>
                <p>A group is there from its first pop on.</p>
              </Empty>
            }
          />
        )}
      </Panel>
    </Page>
  );
}

function matching(groups: GroupRow[], search: string | undefined, shown: (typeof SHOWN)[number]): GroupRow[] {
  const text = search?.toLowerCase() ?? "";
  return groups.filter((group) => {
    if (!`${groupName(group.name)} ${group.name} ${group.queueName}`.toLowerCase().includes(text)) return false;
    if (shown === "lagging") return (group.totalLag ?? 0) > 0;
    return shown === "all" || (group.members ?? 0) > 0;
  });
}
