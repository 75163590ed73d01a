import { Tabs } from "@mantine/core";
import { Page } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useMayEverywhere } from "../../live/useWho";
import { routes } from "../../router";
import { one } from "../../search";
import { Workers } from "../load/Workers";
import { Audit } from "./Audit";
import { Keys } from "./Keys";
import { Process } from "./Process";
import { Settings } from "./Settings";

const TABS = ["servers", "settings", "keys", "audit"] as const;

export function System() {
  const { tab } = routes.system.useSearch();
  const navigate = routes.system.useNavigate();
  const { data: health } = useLive("/health");
  const admin = useMayEverywhere("admin");
  return (
    <Page title="System" note={health && `Lockstep ${health.version}`}>
      <Tabs
        value={admin ? one(tab, TABS, "servers") : "servers"}
        onChange={(value) => void navigate({ search: { tab: value ?? undefined } })}
        keepMounted={false}
      >
        <Tabs.List mb="md">
          <Tabs.Tab value="servers">Servers</Tabs.Tab>
          {admin && <Tabs.Tab value="settings">Settings</Tabs.Tab>}
          {admin && <Tabs.Tab value="keys">Keys</Tabs.Tab>}
          {admin && <Tabs.Tab value="audit">Audit log</Tabs.Tab>}
        </Tabs.List>
        <Tabs.Panel value="servers">
          <Process />
          <Workers />
        </Tabs.Panel>
        <Tabs.Panel value="settings">
          <Settings />
        </Tabs.Panel>
        <Tabs.Panel value="keys">
          <Keys />
        </Tabs.Panel>
        <Tabs.Panel value="audit">
          <Audit />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
