import { Button, Menu, Tabs } from "@mantine/core";
import { Link } from "@tanstack/react-router";
import { CirclePause, CirclePlay, EllipsisVertical, Rewind } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { Figure, Figures } from "../../design/Figure";
import { count, duration, moment } from "../../design/format";
import { Ago, Empty, Fact, Facts, Failure, Loading, Page, Panel } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { useLive } from "../../live/useLive";
import { useMay } from "../../live/useWho";
import { routes } from "../../router";
import { one } from "../../search";
import { groupName, GroupState } from "../groups/words";
import { LeasedPartitions } from "../queue/LeasedPartitions";
import { StuckPartitions } from "../queue/StuckPartitions";
import { DeleteGroup } from "./DeleteGroup";
import { GroupPartitions } from "./GroupPartitions";
import { Pause, setPaused } from "./Pause";
import { Seek } from "./Seek";

type GroupRow = Schemas["GroupRow"];
const TABS = ["partitions", "stuck", "leases", "about"] as const;

/** A group in one queue; where it reads several, the reader chooses. */
export function GroupPage() {
  const { group: name } = routes.group.useParams();
  const { queue } = routes.group.useSearch();
  const { data, error } = useLive("/api/v1/consumer-groups");
  const rows = data?.filter((row) => row.name === name) ?? [];
  const row = rows.find((candidate) => candidate.queueName === queue) ?? rows[0];
  return (
    <Page
      title={groupName(name)}
      beside={row && <GroupState group={row} />}
      actions={row && <GroupActs row={row} />}
      note={row && <QueueChoice rows={rows} chosen={row} />}
    >
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={8} />}
      {data !== undefined && row === undefined && (
        <Empty title="There is no such group">
          <p>It was deleted, or has not popped yet.</p>
        </Empty>
      )}
      {row !== undefined && <GroupOfQueue row={row} />}
    </Page>
  );
}

function QueueChoice({ rows, chosen }: { rows: GroupRow[]; chosen: GroupRow }) {
  return (
    <>
      reads{" "}
      {rows.map((row, index) => (
        <span key={row.queueName}>
          {index > 0 && ", "}
          {row === chosen ? (
            <Link to="/queues/$queue" params={{ queue: row.queueName }}>
              <strong>{row.queueName}</strong>
            </Link>
          ) : (
            <Link to="/groups/$group" params={{ group: row.name }} search={{ queue: row.queueName }}>
              {row.queueName}
            </Link>
          )}
        </span>
      ))}
    </>
  );
}

function GroupActs({ row }: { row: GroupRow }) {
  const [open, setOpen] = useState<"seek" | "pause" | "delete" | null>(null);
  const { run, busy, error } = useAct();
  const may = useMay(row.queueName);
  const close = (): void => setOpen(null);
  return (
    <>
      <Failure error={error} />
      {may("manage") && row.pausedAt === null && (
        <Button variant="default" leftSection={<CirclePause size={15} />} onClick={() => setOpen("pause")}>
          Pause
        </Button>
      )}
      {may("manage") && row.pausedAt !== null && (
        <Button leftSection={<CirclePlay size={15} />} loading={busy} onClick={() => run(() => setPaused(row, false))}>
          Resume
        </Button>
      )}
      {may("manage") && (
        <Button variant="default" leftSection={<Rewind size={15} />} onClick={() => setOpen("seek")}>
          Seek
        </Button>
      )}
      {may("configure") && (
        <Menu position="bottom-end">
          <Menu.Target>
            <Button variant="default" px={8} aria-label="More">
              <EllipsisVertical size={16} />
            </Button>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Item color="red" onClick={() => setOpen("delete")}>
              Delete the group…
            </Menu.Item>
          </Menu.Dropdown>
        </Menu>
      )}
      {open === "seek" && <Seek group={row} onClose={close} />}
      {open === "pause" && <Pause group={row} onClose={close} />}
      {open === "delete" && <DeleteGroup group={row} onClose={close} />}
    </>
  );
}

function GroupOfQueue({ row }: { row: GroupRow }) {
  const { tab } = routes.group.useSearch();
  const navigate = routes.group.useNavigate();
  return (
    <>
      <Figures>
        <Figure label="Lag" value={count(row.totalLag)} hint="messages not done" />
        <Figure
          label="Oldest unread"
          value={row.maxTimeLag === 0 ? "–" : duration(row.maxTimeLag)}
          tone={(row.maxTimeLag ?? 0) > 300 ? "lagging" : undefined}
        />
        <Figure label="In flight" value={count(row.inFlight)} hint="under a live lease" />
        <Figure label="Live leases" value={count(row.members)} />
        <Figure label="Partitions with lag" value={count(row.partitionsWithLag)} />
      </Figures>
      <Tabs
        value={one(tab, TABS, "partitions")}
        onChange={(value) => void navigate({ search: (before) => ({ ...before, tab: value ?? undefined }) })}
        keepMounted={false}
      >
        <Tabs.List mb="md">
          <Tabs.Tab value="partitions">Partitions</Tabs.Tab>
          <Tabs.Tab value="stuck">Stuck</Tabs.Tab>
          <Tabs.Tab value="leases">Leases</Tabs.Tab>
          <Tabs.Tab value="about">About</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="partitions">
          <GroupPartitions group={row.name} queue={row.queueName} />
        </Tabs.Panel>
        <Tabs.Panel value="stuck">
          <StuckPartitions queue={row.queueName} group={row.name} />
        </Tabs.Panel>
        <Tabs.Panel value="leases">
          <LeasedPartitions queue={row.queueName} group={row.name} />
        </Tabs.Panel>
        <Tabs.Panel value="about">
          <About row={row} />
        </Tabs.Panel>
      </Tabs>
    </>
  );
}

function About({ row }: { row: GroupRow }) {
  return (
    <Panel title="About it">
      <Facts>
        <Fact name="Name">
          <span className="ls-mono">{row.name}</span>
        </Fact>
        <Fact name="Began with">{row.subscriptionMode}</Fact>
        {row.subscriptionTimestamp !== null && <Fact name="From">{moment(row.subscriptionTimestamp)}</Fact>}
        {row.pausedAt !== null && <Fact name="Paused since">{moment(row.pausedAt)}</Fact>}
        <Fact name="Known since">{moment(row.subscriptionCreatedAt)}</Fact>
        {row.figuresAt !== null && (
          <Fact name="Figures">
            counted <Ago at={row.figuresAt} />
          </Fact>
        )}
      </Facts>
    </Panel>
  );
}
