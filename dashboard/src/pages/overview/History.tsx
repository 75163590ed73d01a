/** Rates and lag over the last hours, from samples that survive a restart. */
import { useMemo } from "react";
import { Empty, Panel } from "../../design/parts";
import { count, duration, rate } from "../../design/format";
import { TimeChart } from "../../design/TimeChart";
import { useLive } from "../../live/useLive";
import { complete, SPANS, type Range } from "./Range";

interface HistoryProps {
  range: Range;
  queue?: string;
}

export function History({ range, queue }: HistoryProps) {
  const { data } = useLive("/api/v1/status/analytics", { query: { ...SPANS[range], queue } });
  const points = useMemo(() => complete(data?.dataPoints ?? [], SPANS[range].interval), [data, range]);
  const times = useMemo(() => points.map((point) => Date.parse(point.timestamp) / 1000), [points]);
  const flow = useMemo(
    () => [
      { name: "In", colour: "--ls-in", values: points.map((point) => point.ingestedPerSecond), filled: true },
      { name: "Out", colour: "--ls-out", values: points.map((point) => point.processedPerSecond) },
    ],
    [points],
  );
  const pending = useMemo(
    () => [{ name: "Pending", colour: "--ls-lagging", values: points.map((point) => point.pending), filled: true }],
    [points],
  );
  const dead = useMemo(
    () => [
      { name: "Dead letters", colour: "--ls-dead", values: points.map((point) => point.deadLettered), filled: true },
    ],
    [points],
  );
  const lag = useMemo(
    () => [{ name: "Oldest", colour: "--ls-accent", values: points.map((point) => point.lagSeconds), filled: true }],
    [points],
  );
  if (points.length < 2) {
    return (
      <Panel title="History">
        <Empty title="No history yet">
          <p>A sample of every queue is taken once a minute. The lines begin with the second one.</p>
        </Empty>
      </Panel>
    );
  }
  return (
    <>
      <Panel title="Messages per second">
        <TimeChart label="Messages per second, in and out" times={times} series={flow} format={rate} />
      </Panel>
      <Panel title="Pending messages">
        <TimeChart label="Pending messages" times={times} series={pending} format={count} whole />
      </Panel>
      <Panel title="Age of the oldest unread message">
        <TimeChart label="Age of the oldest unread message" times={times} series={lag} format={duration} height={150} />
      </Panel>
      <Panel title="New dead letters">
        <TimeChart label="New dead letters" times={times} series={dead} format={count} whole height={150} />
      </Panel>
    </>
  );
}
