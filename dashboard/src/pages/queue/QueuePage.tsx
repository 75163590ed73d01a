import { Button, Group, Menu, Tabs } from "@mantine/core";
import { EllipsisVertical, Send } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { Badge, Columns, Failure, Loading, Page } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useMay } from "../../live/useWho";
import { routes } from "../../router";
import { one } from "../../search";
import { History } from "../overview/History";
import { RangeControl, rangeOf } from "../overview/Range";
import { ClearQueue, DeleteQueue } from "./Dangers";
import { QueueFigures } from "./QueueFigures";
import { QueueGroups } from "./QueueGroups";
import { Options } from "./Options";
import { Partitions } from "./Partitions";
import { PushMessage } from "./PushMessage";

const TABS = ["overview", "partitions", "options"] as const;
type Open = "push" | "clear" | "delete" | null;
export type QueueDetail = Schemas["StatusQueueConfig"];

export function QueuePage() {
  const { queue: name } = routes.queue.useParams();
  const { tab, range } = routes.queue.useSearch();
  const navigate = routes.queue.useNavigate();
  const [open, setOpen] = useState<Open>(null);
  const may = useMay(name);
  const { data, error } = useLive("/api/v1/status/queues/{queue}", { params: { queue: name }, query: { limit: 1 } });
  const queue = data?.queue;
  const chosen = rangeOf(range);
  const close = (): void => setOpen(null);
  return (
    <Page
      title={name}
      beside={queue && <Health queue={queue} />}
      actions={
        queue && (
          <>
            {may("push") && (
              <Button leftSection={<Send size={15} />} onClick={() => setOpen("push")}>
                Push a message
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
                  <Menu.Item onClick={() => setOpen("clear")}>Remove its messages…</Menu.Item>
                  <Menu.Item color="red" onClick={() => setOpen("delete")}>
                    Delete the queue…
                  </Menu.Item>
                </Menu.Dropdown>
              </Menu>
            )}
          </>
        )
      }
    >
      <Failure error={error} />
      {queue === undefined && error === null && <Loading rows={8} />}
      {queue !== undefined && (
        <Tabs
          value={one(tab, TABS, "overview")}
          onChange={(value) => void navigate({ search: value === null ? {} : { tab: value } })}
          keepMounted={false}
        >
          <Tabs.List mb="md">
            <Tabs.Tab value="overview">Overview</Tabs.Tab>
            <Tabs.Tab value="partitions">Partitions</Tabs.Tab>
            <Tabs.Tab value="options">Options</Tabs.Tab>
          </Tabs.List>
          <Tabs.Panel value="overview">
            <QueueFigures queue={queue} />
            <QueueGroups queue={name} />
            <Group justify="flex-end" mb="sm">
              <RangeControl value={chosen} onChange={(value) => void navigate({ search: { tab, range: value } })} />
            </Group>
            <Columns>
              <History range={chosen} queue={name} />
            </Columns>
          </Tabs.Panel>
          <Tabs.Panel value="partitions">
            <Partitions queue={name} />
          </Tabs.Panel>
          <Tabs.Panel value="options">
            <Options queue={queue} />
          </Tabs.Panel>
        </Tabs>
      )}
      {open === "push" && <PushMessage queue={name} onClose={close} />}
      {open === "clear" && queue && <ClearQueue queue={queue} onClose={close} />}
      {open === "delete" && queue && <DeleteQueue queue={queue} onClose={close} />}
    </Page>
  );
}

function Health({ queue }: { queue: QueueDetail }) {
  if ((queue.messages.deadLetter ?? 0) > 0) return <Badge tone="dead">Has dead letters</Badge>;
  if ((queue.lagSeconds ?? 0) > 300) return <Badge tone="lagging">Behind</Badge>;
  if (queue.messages.pending === 0) return <Badge tone="idle">Drained</Badge>;
  return <Badge tone="healthy">Healthy</Badge>;
}
