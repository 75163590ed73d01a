import { expect, test } from "vitest";
import { fingerprint } from "./fingerprint";

test("errors that differ in ids, values and numbers are of one kind", () => {
  expect(fingerprint("order 17 timed out after 30.5 s")).toBe(fingerprint("order 4 timed out after 2 s"));
  expect(fingerprint("no customer 'a b'")).toBe(fingerprint("no customer 'c'"));
  const ids = ["0190a7c4-0000-7000-8000-000000000001", "0190A7C4-0000-7000-8000-000000000002"];
  expect(new Set(ids.map((id) => fingerprint(`message ${id} is bad`))).size).toBe(1);
});

test("of a traceback the first line counts", () => {
  expect(fingerprint("ValueError: no\n  at line 3")).toBe("ValueError: no");
});
