import { expect, test } from "vitest";
import { asCurl } from "./asCurl";

const MESSAGE = { queue: "q", partition: "p", kind: null, reference: null, headers: {}, traceId: null };

test("a payload with quotes stays one word of the shell", () => {
  expect(asCurl("http://here", { ...MESSAGE, payload: { a: "it's" } })).toBe(
    `curl -X POST http://here/api/v1/push -H 'content-type: application/json' -d ` +
      `'{"items":[{"queue":"q","partition":"p","payload":{"a":"it'\\''s"}}]}'`,
  );
});

test("what the message had besides its payload goes with it", () => {
  const command = asCurl("", { ...MESSAGE, payload: 1, kind: "k", traceId: "t", headers: { h: "1" } });
  expect(command).toContain('"traceId":"t","kind":"k","headers":{"h":"1"}');
});
