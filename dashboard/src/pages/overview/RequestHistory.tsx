/** What the servers answered over the last hours, and how busy they were, from samples that survive a restart. */
import { useMemo } from "react";
import { count, rate } from "../../design/format";
import { Empty, Panel } from "../../design/parts";
import { TimeChart } from "../../design/TimeChart";
import { useLive } from "../../live/useLive";
import { complete, SPANS, type Range } from "./Range";

const percent = (load: number) => `${Math.round(load * 100)} %`;

export function RequestHistory({ range }: { range: Range }) {
  const { data } = useLive("/api/v1/analytics/requests", { query: SPANS[range] });
  const points = useMemo(() => complete(data?.dataPoints ?? [], SPANS[range].interval), [data, range]);
  const times = useMemo(() => points.map((point) => Date.parse(point.timestamp) / 1000), [points]);
  const requests = useMemo(
    () => [
      { name: "Requests", colour: "--ls-in", values: points.map((point) => point.requestsPerSecond), filled: true },
    ],
    [points],
  );
  const errors = useMemo(
    () => [
      { name: "Server errors", colour: "--ls-dead", values: points.map((point) => point.serverErrors) },
      { name: "Client errors", colour: "--ls-lagging", values: points.map((point) => point.clientErrors) },
    ],
    [points],
  );
  const load = useMemo(
    () => [{ name: "Highest load", colour: "--ls-accent", values: points.map((point) => point.load), filled: true }],
    [points],
  );
  const refused = useMemo(
    () => [
      { name: "Queued", colour: "--ls-lagging", values: points.map((point) => point.queued) },
      { name: "Refused", colour: "--ls-dead", values: points.map((point) => point.rejected) },
    ],
    [points],
  );
  if (points.length < 2) {
    return (
      <Panel title="Requests, errors and load">
        <Empty title="No history yet">
          <p>Every server takes a sample once a minute. The lines begin with the second one.</p>
        </Empty>
      </Panel>
    );
  }
  return (
    <>
      <Panel title="Requests per second">
        <TimeChart label="Requests per second" times={times} series={requests} format={rate} height={150} />
      </Panel>
      <Panel title="Errors">
        <TimeChart
          label="Errors of servers and of clients"
          times={times}
          series={errors}
          format={count}
          whole
          height={150}
        />
      </Panel>
      <Panel title="Load">
        <TimeChart label="Highest load of a server" times={times} series={load} format={percent} height={150} />
      </Panel>
      <Panel title="Requests queued and refused under load">
        <TimeChart
          label="Requests queued and refused"
          times={times}
          series={refused}
          format={count}
          whole
          height={150}
        />
      </Panel>
    </>
  );
}
