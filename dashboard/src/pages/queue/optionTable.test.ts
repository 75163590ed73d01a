import { expect, test } from "vitest";
import { optionTable, problem, spoken } from "./optionTable";

const TABLE = optionTable({
  components: {
    schemas: {
      Options: {
        properties: {
          leaseTime: { description: "Of `a` lease.", type: "integer", minimum: 1, maximum: 9, default: 3 },
          onExhausted: { enum: ["dead", "stop"], default: "dead" },
          deadQueue: { default: null },
        },
      },
    },
  },
});

test("options are as the server describes them", () => {
  expect([...TABLE.values()].map((option) => option.kind)).toEqual(["number", "choice", "text"]);
  expect(TABLE.get("leaseTime")?.meaning).toBe("Of a lease.");
  expect(spoken("completedRetentionSeconds")).toBe("Completed retention seconds");
});

test("a number outside of its range is noticed before the server is asked", () => {
  const option = TABLE.get("leaseTime");
  expect(option).toBeDefined();
  if (option === undefined) return;
  expect([problem(option, 3), problem(option, 10), problem(option, "x")]).toEqual([
    null,
    "From 1 to 9",
    "A number is needed",
  ]);
});
