/** Steps and queues of a pipeline in columns, from the first source to the last sink. */
import type { Schemas } from "../../api/client";

export type StepRow = Schemas["PipelineStepRow"];

export interface Node {
  name: string;
  kind: "queue" | "step";
  column: number;
  step?: StepRow;
}

export interface Graph {
  columns: Node[][];
  edges: { from: string; to: string }[];
}

export function graphOf(steps: StepRow[]): Graph {
  const edges = steps.flatMap((step) => [
    ...step.sources.map((queue) => ({ from: `queue ${queue}`, to: `step ${step.step}` })),
    ...step.sinks.map((queue) => ({ from: `step ${step.step}`, to: `queue ${queue}` })),
  ]);
  const nodes = new Map<string, Node>();
  for (const step of steps) {
    nodes.set(`step ${step.step}`, { name: step.step, kind: "step", column: 0, step });
    for (const queue of [...step.sources, ...step.sinks]) {
      nodes.set(`queue ${queue}`, { name: queue, kind: "queue", column: 0 });
    }
  }
  // A pipeline may go in circles; each node moves to the right at most as often as there are nodes.
  for (let round = 0; round < nodes.size; round++) {
    for (const { from, to } of edges) {
      const [left, right] = [nodes.get(from), nodes.get(to)];
      if (left && right && right.column <= left.column && left.column + 1 < nodes.size) right.column = left.column + 1;
    }
  }
  const columns: Node[][] = [];
  for (const node of nodes.values()) (columns[node.column] ??= []).push(node);
  return { columns: columns.filter((column) => column.length > 0), edges };
}

/** Steps as messages pass them. */
export function inOrder(steps: StepRow[]): StepRow[] {
  return graphOf(steps)
    .columns.flat()
    .map((node) => node.step)
    .filter((step) => step !== undefined);
}
