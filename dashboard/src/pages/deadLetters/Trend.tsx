import { useMemo } from "react";
import { Panel } from "../../design/parts";
import { count } from "../../design/format";
import { TimeChart } from "../../design/TimeChart";
import { useLive } from "../../live/useLive";

const DAY = { interval: "hour", lastSeconds: 86_400 } as const;

/** How many came in each hour of the last day. */
export function Trend({ queue }: { queue: string | undefined }) {
  const { data } = useLive("/api/v1/status/analytics", { query: { ...DAY, queue } });
  const times = useMemo(() => (data?.dataPoints ?? []).map((point) => Date.parse(point.timestamp) / 1000), [data]);
  const series = useMemo(() => {
    const values = (data?.dataPoints ?? []).map((point) => point.deadLettered);
    return [{ name: "New dead letters", colour: "--ls-dead", values, filled: true }];
  }, [data]);
  if (times.length < 2) return null;
  return (
    <Panel title="New in each hour of the last day">
      <TimeChart label="New dead letters by hour" times={times} series={series} format={count} whole height={130} />
    </Panel>
  );
}
