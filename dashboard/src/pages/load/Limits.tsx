/** The limits that turn requests away, with how they are set. */
import { Link } from "@tanstack/react-router";
import { bytes, exact } from "../../design/format";
import { Fact, Facts, Panel } from "../../design/parts";
import { useAnswer } from "../../live/useLive";
import { useMayEverywhere } from "../../live/useWho";

const LIMITS: [string, string, "number" | "bytes"][] = [
  ["connections_max", "Connections", "number"],
  ["connections_per_address_max", "Connections of one address", "number"],
  ["requests_per_second_max", "Requests of one caller in a second", "number"],
  ["polls_waiting_max", "Pops that wait", "number"],
  ["body_bytes_max", "Size of a request", "bytes"],
  ["bodies_bytes_max", "Size of all requests on their way", "bytes"],
  ["operation_push_depth_max", "Queued pushes", "number"],
  ["spool_bytes_max", "Buffer on disk", "bytes"],
];

export function Limits() {
  const admin = useMayEverywhere("admin");
  const { data } = useAnswer("/api/v1/system/settings", {}, { enabled: admin });
  if (data === undefined) return null;
  const known = new Map(data.settings.map(({ name, value }) => [name, value]));
  return (
    <Panel
      title="Limits"
      actions={
        <Link to="/system" search={{ tab: "settings", search: "_max" }}>
          All limits
        </Link>
      }
    >
      <Facts>
        {LIMITS.filter(([name]) => known.has(name)).map(([name, words, kind]) => (
          <Fact key={name} name={words}>
            <span title={name}>{shown(known.get(name), kind)}</span>
          </Fact>
        ))}
      </Facts>
    </Panel>
  );
}

function shown(value: unknown, kind: "number" | "bytes"): string {
  if (typeof value !== "number" || value === 0) return "no limit";
  return kind === "bytes" ? bytes(value) : exact(value);
}
