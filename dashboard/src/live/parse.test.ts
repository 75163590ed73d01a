import { expect, test } from "vitest";
import { EventParser } from "./parse";

test("events come in pieces of any size", () => {
  const text = 'retry: 1000\n\nid: a-1\nevent: answer\ndata: {"n":1}\n\n: nothing changed\n\nid: a-2\ndata: x\n\n';
  for (const size of [1, 3, 1000]) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.push(text.slice(at, at + size)));
    expect(found).toEqual([
      { id: "a-1", name: "answer", data: '{"n":1}' },
      { id: "a-2", name: "message", data: "x" },
    ]);
  }
});
