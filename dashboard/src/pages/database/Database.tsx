import { Figure, Figures } from "../../design/Figure";
import { bytes, count, exact, percent } from "../../design/format";
import { Columns, Failure, Loading, Page } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useMayEverywhere } from "../../live/useWho";
import { Activity, useWritten } from "./Activity";
import { Duties } from "./Duties";
import { Tables } from "./Tables";
import { Verify } from "./Verify";

export function Database() {
  const { data, error } = useLive("/api/v1/analytics/postgres-stats");
  const admin = useMayEverywhere("admin");
  const browse = useMayEverywhere("browse");
  const activity = useLive("/api/v1/analytics/postgres-activity", {}, { enabled: browse });
  const written = useWritten(activity.data?.walBytes);
  const full = data !== undefined && data.connections > data.connectionsMax * 0.8;
  return (
    <Page title="Database" note={data?.version ? `PostgreSQL ${data.version}` : undefined}>
      <Failure error={error} />
      {data === undefined && error === null && <Loading rows={8} />}
      {data !== undefined && (
        <>
          <Figures>
            <Figure label="Size" value={bytes(data.databaseBytes)} />
            <Figure
              label="Connections"
              value={exact(data.connections)}
              tone={full ? "lagging" : undefined}
              hint={`of at most ${exact(data.connectionsMax)}`}
            />
            {browse && (
              <Figure
                label="WAL written"
                value={written === null ? "–" : bytes(written)}
                unit="/s"
                hint={activity.data ? `${bytes(activity.data.walBytes ?? null)} in all` : undefined}
              />
            )}
            <Figure label="Found in cache" value={percent(data.cacheHitRate)} hint="of the blocks read" />
            <Figure label="Commits" value={count(data.commits)} hint={`${count(data.rollbacks)} rollbacks`} />
            <Figure
              label="Deadlocks"
              value={count(data.deadlocks)}
              tone={data.deadlocks > 0 ? "lagging" : undefined}
              hint="since the reset"
            />
          </Figures>
          {browse && <Activity activity={activity.data} error={activity.error} />}
          <Columns>
            <Tables tables={data.tables} />
            <Duties />
          </Columns>
          {admin && <Verify />}
        </>
      )}
    </Page>
  );
}
