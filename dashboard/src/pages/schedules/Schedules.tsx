import { Tabs } from "@mantine/core";
import { Page } from "../../design/parts";
import { routes } from "../../router";
import { one } from "../../search";
import { Crons } from "./Crons";
import { Waiting } from "./Waiting";

export function Schedules() {
  const { tab } = routes.schedules.useSearch();
  const navigate = routes.schedules.useNavigate();
  return (
    <Page title="Scheduled" note="Messages that wait for their time, and those that recur.">
      <Tabs
        value={one(tab, ["waiting", "cron"] as const, "waiting")}
        onChange={(value) => void navigate({ search: { tab: value ?? undefined } })}
        keepMounted={false}
      >
        <Tabs.List mb="md">
          <Tabs.Tab value="waiting">Waiting</Tabs.Tab>
          <Tabs.Tab value="cron">Recurring</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="waiting">
          <Waiting />
        </Tabs.Panel>
        <Tabs.Panel value="cron">
          <Crons />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
