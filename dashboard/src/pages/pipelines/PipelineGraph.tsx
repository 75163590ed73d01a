/** A pipeline as a graph: queues are round, steps are square, and a step has the colour of its state. */
import { useElementSize } from "@mantine/hooks";
import { Link } from "@tanstack/react-router";
import { count, rate } from "../../design/format";
import { graphOf, type Node, type StepRow } from "./graph";
import css from "./pipelines.module.css";

const WIDTH_MAX = 190;
const WIDTH_MIN = 118;
const HEIGHT = 48;
const GAP_MIN = 28;
const GAP_MAX = 72;
const GAP_SHARE = 0.3;
const GAP_Y = 18;
const PADDING = 16;

export function PipelineGraph({ steps }: { steps: StepRow[] }) {
  const { columns, edges } = graphOf(steps);
  const tallest = Math.max(...columns.map((column) => column.length));
  const { ref, width: room } = useElementSize();
  const [wide, gap] = sizes(room - 2 * PADDING, columns.length);
  const places = new Map<string, { x: number; y: number }>();
  columns.forEach((column, across) =>
    column.forEach((node, down) => {
      const free = (tallest - column.length) * (HEIGHT + GAP_Y);
      places.set(`${node.kind} ${node.name}`, { x: across * (wide + gap), y: free / 2 + down * (HEIGHT + GAP_Y) });
    }),
  );
  const width = columns.length * (wide + gap) - gap;
  const height = tallest * (HEIGHT + GAP_Y) - GAP_Y;
  return (
    <div ref={ref} className={css.graph} tabIndex={0} role="region" aria-label="The steps and queues as a graph">
      <div className={css.drawing} style={{ width, height }}>
        <svg width={width} height={height} className={css.edges} aria-hidden>
          {edges.map(({ from, to }) => (
            <Edge key={`${from} ${to}`} from={places.get(from)} to={places.get(to)} wide={wide} />
          ))}
        </svg>
        {columns.flat().map((node) => {
          const place = places.get(`${node.kind} ${node.name}`);
          return (
            <div
              key={`${node.kind} ${node.name}`}
              className={css.node}
              style={{ left: place?.x, top: place?.y, width: wide, height: HEIGHT }}
            >
              {node.kind === "queue" ? <Queue name={node.name} /> : <Step node={node} />}
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** How wide a node and a gap are, so that all columns fit where they can. */
function sizes(room: number, columns: number): [number, number] {
  const each = room / Math.max(columns, 1);
  const gap = Math.min(Math.max(each * GAP_SHARE, GAP_MIN), GAP_MAX);
  const wide = (room + gap) / Math.max(columns, 1) - gap;
  return [Math.min(Math.max(wide, WIDTH_MIN), WIDTH_MAX), gap];
}

type Point = { x: number; y: number } | undefined;

function Edge({ from, to, wide }: { from: Point; to: Point; wide: number }) {
  if (from === undefined || to === undefined) return null;
  const [x1, y1, x2, y2] = [from.x + wide, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = Math.max((x2 - x1) / 2, 24);
  return <path d={`M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`} className={css.edge} />;
}

function Queue({ name }: { name: string }) {
  return (
    <Link to="/queues/$queue" params={{ queue: name }} className={css.queue} title={name}>
      {name}
    </Link>
  );
}

function Step({ node }: { node: Node }) {
  const { step } = node;
  return (
    <div className={`${css.step ?? ""} ${css[step?.state ?? "stopped"] ?? ""}`} title={step?.error ?? node.name}>
      <strong>{node.name}</strong>
      <span>
        {rate(step?.rowsPerSecond)}/s · lag {count(step?.lag)}
      </span>
    </div>
  );
}
