const ID = /\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b/gi;
const QUOTED = /(["'`])(?:(?!\1).){1,200}\1/g;
const NUMBER = /\b\d+(?:\.\d+)?\b/g;

/** What errors of one kind have in common: ids, quoted values and numbers are left out. */
export function fingerprint(error: string): string {
  const line = error.split("\n", 1)[0] ?? "";
  return line.replace(ID, "…").replace(QUOTED, "…").replace(NUMBER, "#").trim();
}
