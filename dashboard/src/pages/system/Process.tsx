import { Figure, Figures } from "../../design/Figure";
import { bytes, count, duration, exact, percent } from "../../design/format";
import { Failure } from "../../design/parts";
import { useLive } from "../../live/useLive";

/** What the answering process uses. */
export function Process() {
  const { data, error } = useLive("/api/v1/analytics/system-metrics");
  if (error !== null) return <Failure error={error} />;
  if (data === undefined) return null;
  const { cpu, memory, pool, cache } = data;
  const looks = cache.hits + cache.misses;
  return (
    <Figures>
      <Figure label="Up" value={duration(data.uptimeSeconds)} hint={data.workerId} />
      <Figure
        label="Processor"
        value={percent((cpu.userSeconds + cpu.systemSeconds) / Math.max(data.uptimeSeconds, 1))}
        hint="of one core, since the start"
      />
      <Figure label="Memory, at most" value={bytes(memory.rssBytesMax)} />
      <Figure
        label="Connections"
        value={exact(pool.open)}
        tone={pool.waiters > 0 ? "lagging" : undefined}
        hint={`of ${exact(pool.max)}; ${count(pool.waiters)} calls wait`}
      />
      <Figure
        label="Segment cache"
        value={bytes(cache.bytes)}
        hint={`${looks === 0 ? "–" : percent(cache.hits / looks)} found there`}
      />
    </Figures>
  );
}
