import { bytes, exact } from "../../design/format";
import { Badge, Bar, Fact, Facts, Panel } from "../../design/parts";
import { useLive } from "../../live/useLive";
import { useMayEverywhere } from "../../live/useWho";

/** What the answering server keeps on disk while PostgreSQL is away. */
export function Buffer() {
  const admin = useMayEverywhere("admin");
  const { data } = useLive("/api/v1/system/maintenance", {}, { enabled: admin });
  if (data === undefined) return null;
  const { bufferStats: stats } = data;
  return (
    <Panel
      title="Connection and buffer"
      beside={
        data.breaker === "closed" ? (
          <Badge tone="healthy">PostgreSQL answers</Badge>
        ) : (
          <Badge tone="dead">PostgreSQL does not answer</Badge>
        )
      }
    >
      {stats === null ? (
        <span className="ls-soft">This server has no buffer on disk: it refuses pushes while PostgreSQL is away.</span>
      ) : (
        <Facts>
          <Fact name="Messages buffered">
            {exact(data.bufferedMessages)} {stats.draining && <Badge tone="lagging">Draining</Badge>}
          </Fact>
          <Fact name="On disk">
            {bytes(stats.bytes)} of {bytes(stats.bytesMax)} in {exact(stats.files)} files
            <Bar part={stats.bytes / Math.max(stats.bytesMax, 1)} label="How full the buffer is" />
          </Fact>
          <Fact name="Buffered since the start">{exact(stats.messagesBuffered)}</Fact>
          <Fact name="Drained">{exact(stats.messagesDrained)}</Fact>
          <Fact name="Refused by the database">{exact(stats.messagesRejected)}</Fact>
          {stats.waitingFor !== null && <Fact name="Waits for">{stats.waitingFor}</Fact>}
          {stats.bytesLost + stats.bytesDamaged > 0 && (
            <Fact name="Lost or damaged">{bytes(stats.bytesLost + stats.bytesDamaged)}</Fact>
          )}
          <Fact name="Folder">
            <span className="ls-mono">{stats.directory}</span>
          </Fact>
        </Facts>
      )}
    </Panel>
  );
}
