import { expect, test } from "vitest";
import { graphOf, inOrder, type StepRow } from "./graph";

function step(name: string, sources: string[], sinks: string[]): StepRow {
  return { step: name, sources, sinks } as StepRow;
}

test("a chain goes from left to right, queue by queue and step by step", () => {
  const { columns } = graphOf([step("second", ["b"], ["c"]), step("first", ["a"], ["b"])]);
  expect(columns.map((column) => column.map((node) => node.name))).toEqual([
    ["a"],
    ["first"],
    ["b"],
    ["second"],
    ["c"],
  ]);
});

test("a pipeline that goes in circles ends, too", () => {
  const { columns, edges } = graphOf([step("again", ["a"], ["a"])]);
  expect(columns.flat()).toHaveLength(2);
  expect(edges).toHaveLength(2);
});

test("steps are listed as messages pass them", () => {
  const steps = [step("last", ["b"], ["c"]), step("first", ["a"], ["b"])];
  expect(inOrder(steps).map((one) => one.step)).toEqual(["first", "last"]);
});
