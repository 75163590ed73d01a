/** Maintenance mode: pushes are buffered, or pops find nothing, on all servers. */
import { Button, Group } from "@mantine/core";
import { useState } from "react";
import { send } from "../../api/client";
import { Confirm } from "../../design/Confirm";
import { Badge, Fact, Facts, Failure, Panel } from "../../design/parts";
import { useAct } from "../../design/useAct";
import { useLive } from "../../live/useLive";
import { useMayEverywhere } from "../../live/useWho";

type Kind = "push" | "pop";
const PATHS = { push: "/api/v1/system/maintenance", pop: "/api/v1/system/maintenance/pop" } as const;

export function Modes() {
  const admin = useMayEverywhere("admin");
  const { data, error } = useLive("/api/v1/system/maintenance", {}, { enabled: admin });
  if (!admin) return null;
  return (
    <Panel title="Maintenance mode">
      <Failure error={error} />
      {data !== undefined && (
        <Facts>
          <Fact name="Pushes">
            <Mode kind="push" on={data.maintenanceMode} />
          </Fact>
          <Fact name="Pops">
            <Mode kind="pop" on={data.popMaintenanceMode} />
          </Fact>
        </Facts>
      )}
    </Panel>
  );
}

const WORDS = {
  push: {
    off: "Go to PostgreSQL",
    on: "Are buffered on disk",
    explain:
      "All servers keep pushes on disk, in order, until this is switched off again. Nothing is lost, and consumers do " +
      "not see what is buffered.",
  },
  pop: {
    off: "Deliver messages",
    on: "Find nothing",
    explain: "All servers answer pops as if there were no messages, until this is switched off again.",
  },
};

function Mode({ kind, on }: { kind: Kind; on: boolean }) {
  const [asking, setAsking] = useState(false);
  const { run, busy, error } = useAct();
  const words = WORDS[kind];
  async function set(enabled: boolean): Promise<string> {
    await send("post", PATHS[kind], { body: { enabled } });
    return `Maintenance mode of ${kind === "push" ? "pushes" : "pops"} is ${enabled ? "on" : "off"}.`;
  }
  return (
    <>
      <Group gap="sm">
        <Badge tone={on ? "lagging" : "healthy"}>{on ? words.on : words.off}</Badge>
        <Button
          size="compact-xs"
          variant="default"
          loading={busy}
          onClick={() => (on ? run(() => set(false)) : setAsking(true))}
        >
          {on ? "Switch off" : "Switch on…"}
        </Button>
      </Group>
      <Failure error={error} />
      {asking && (
        <Confirm
          title={`Maintenance mode of ${kind === "push" ? "pushes" : "pops"}`}
          name="maintenance"
          verb="Switch it on"
          act={() => set(true)}
          onClose={() => setAsking(false)}
        >
          {words.explain}
        </Confirm>
      )}
    </>
  );
}
