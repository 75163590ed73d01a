import { routes } from "../../router";
import { Tabs } from "@mantine/core";
import { Columns, Page } from "../../design/parts";
import { one } from "../../search";
import { Buffer } from "./Buffer";
import { Decisions } from "./Decisions";
import { Joined } from "./Joined";
import { Limits } from "./Limits";
import { Modes } from "./Modes";
import { Operations } from "./Operations";
import { RequestHistory } from "../overview/RequestHistory";
import { Workers } from "./Workers";

export function Load() {
  const { tab } = routes.load.useSearch();
  const navigate = routes.load.useNavigate();
  return (
    <Page title="Load" note="What the server does when it is busy, or PostgreSQL is away.">
      <Tabs
        value={one(tab, ["now", "history", "operations"] as const, "now")}
        onChange={(value) => void navigate({ search: { tab: value ?? undefined } })}
        keepMounted={false}
      >
        <Tabs.List mb="md">
          <Tabs.Tab value="now">Now</Tabs.Tab>
          <Tabs.Tab value="history">History</Tabs.Tab>
          <Tabs.Tab value="operations">Queued operations</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="now">
          <Modes />
          <Decisions />
          <Columns>
            <Buffer />
            <Limits />
          </Columns>
          <Workers />
          <Joined />
        </Tabs.Panel>
        <Tabs.Panel value="history">
          <Columns>
            <RequestHistory range="6h" />
          </Columns>
        </Tabs.Panel>
        <Tabs.Panel value="operations">
          <Operations />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
