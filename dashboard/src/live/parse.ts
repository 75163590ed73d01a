/** Server-sent events, as they come in pieces of any size. */
export interface ServerEvent {
  id: string | null;
  name: string;
  data: string;
}

export class EventParser {
  #rest = "";

  /** The events that are complete with this piece. Comments and what only sets a time are left out. */
  push(piece: string): ServerEvent[] {
    const blocks = (this.#rest + piece).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    return blocks.map(parse).filter((event) => event !== null);
  }
}

function parse(block: string): ServerEvent | null {
  const event: ServerEvent = { id: null, name: "message", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    const value = line.slice(at + 2);
    if (line.startsWith("id: ")) event.id = value;
    else if (line.startsWith("event: ")) event.name = value;
    else if (line.startsWith("data: ")) event.data += value;
  }
  return event.data ? event : null;
}
