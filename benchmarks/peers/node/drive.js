// The program that drives one queue through its Node client. It speaks as drive.py does.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { PgBoss } from "pg-boss";
import { makeWorkerUtils, run as runWorkers } from "graphile-worker";
import pg from "pg";

const CONSUME_MS_MAX = 30_000;
const QUEUE = "bench";

class PgBossDriver {
  constructor(address) {
    this.boss = new PgBoss({ connectionString: address, max: 10, useListenNotify: true });
    this.boss.on("error", (error) => console.error(error.message));
    this.stopped = false;
  }
  async setup() {
    await this.open();
    await this.boss.createQueue(QUEUE, { notify: true });
    await this.close();
  }
  async open() {
    await this.boss.start();
  }
  async close() {
    await this.boss.stop({ graceful: false });
  }
  async push(caller, bodies) {
    await this.boss.insert(QUEUE, bodies.map((data) => ({ data })));
  }
  async consume(take, timed) {
    if (timed) {
      const options = { batchSize: 100, pollingIntervalSeconds: 0.5 };
      await this.boss.work(QUEUE, options, async (jobs) => take(jobs.map((job) => job.data)));
      return;
    }
    // With a backlog its own workers pause between batches; fetching by hand does not.
    const loop = async () => {
      while (!this.stopped) {
        const jobs = await this.boss.fetch(QUEUE, { batchSize: 1000 });
        if (jobs.length === 0) {
          await sleep(10);
          continue;
        }
        await this.boss.complete(QUEUE, jobs.map((job) => job.id));
        take(jobs.map((job) => job.data));
      }
    };
    await Promise.all([loop(), loop()]);
  }
  async stop() {
    this.stopped = true;
  }
}

class GraphileDriver {
  constructor(address) {
    this.address = address;
  }
  async setup() {
    await this.open();
    await this.utils.migrate();
    await this.close();
  }
  async open() {
    this.pool = new pg.Pool({ connectionString: this.address, max: 10 });
    this.utils = await makeWorkerUtils({ pgPool: this.pool, preset: { worker: { logger: silent } } });
  }
  async close() {
    await this.utils.release();
    await this.pool.end();
  }
  async push(caller, bodies) {
    await this.utils.addJobs(bodies.map((payload) => ({ identifier: "job", payload })));
  }
  async consume(take, timed) {
    this.runner = await runWorkers({
      pgPool: this.pool,
      noHandleSignals: true,
      taskList: { job: async (payload) => take([payload]) },
      preset: {
        worker: {
          concurrentJobs: 24,
          localQueue: timed ? { size: -1 } : { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          logger: silent,
        },
      },
    });
    await this.runner.promise;
  }
  async stop() {
    await this.runner?.stop();
  }
}

const silent = await import("graphile-worker").then(({ Logger }) => new Logger(() => () => {}));
const DRIVERS = { "pg-boss": PgBossDriver, "graphile-worker": GraphileDriver };

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// The clock that all processes of the machine share.
const sharedSeconds = () => Number(process.hrtime.bigint()) / 1e9;
const nowNs = () => Math.round((performance.timeOrigin + performance.now()) * 1e6);

const messages = readFileSync(process.env.BENCH_MESSAGES, "utf8").trim().split("\n").map((line) => JSON.parse(line));

function stamped(number) {
  return { at: nowNs(), ...messages[number % messages.length] };
}

function batches(size) {
  const bodies = Array.from({ length: Math.max(size, messages.length) }, (_, number) => stamped(number));
  return Array.from({ length: Math.floor(bodies.length / size) }, (_, n) => bodies.slice(n * size, (n + 1) * size));
}

function ms(values, percent) {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered.length ? ordered[Math.min(ordered.length - 1, Math.floor((ordered.length * percent) / 100))] : 0;
}

async function push(driver, { seconds, callers, batch, messages_max: max }) {
  const bodies = batches(batch);
  const latencies = [];
  let left = max;
  const began = performance.now();
  const beganShared = sharedSeconds();
  const calls = async (caller) => {
    while (performance.now() - began < seconds * 1000 && left >= batch) {
      left -= batch;
      const asked = performance.now();
      await driver.push(caller, bodies[latencies.length % bodies.length]);
      latencies.push(performance.now() - asked);
    }
  };
  await Promise.all(Array.from({ length: callers }, (_, caller) => calls(caller)));
  const elapsed = (performance.now() - began) / 1000;
  return {
    messages: latencies.length * batch,
    began: beganShared,
    seconds: elapsed,
    p50_ms: ms(latencies, 50),
    p99_ms: ms(latencies, 99),
  };
}

async function pushAtRate(driver, { seconds, rate }) {
  const count = Math.floor(seconds * rate);
  const began = performance.now();
  const pending = [];
  for (let number = 0; number < count; number++) {
    const due = began + (number * 1000) / rate;
    await sleep(Math.max(0, due - performance.now()));
    pending.push(driver.push(number % 10, [stamped(number)]));
  }
  await Promise.all(pending);
  return { messages: count, seconds: (performance.now() - began) / 1000 };
}

async function consume(driver, { timed }) {
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const line = async () => (await lines.next()).value;
  let count = 0;
  let expected;
  let last = 0;
  let lastShared = 0;
  const latencies = [];
  let finish;
  const done = new Promise((resolve) => (finish = resolve));
  const take = (messages) => {
    last = performance.now();
    lastShared = sharedSeconds();
    count += messages.length;
    if (timed) for (const each of messages) latencies.push((nowNs() - each.at) / 1e6);
    if (expected !== undefined && count >= expected) finish();
  };
  console.log("ready");
  if (!timed) await line();
  const began = performance.now();
  const consuming = driver.consume(take, timed);
  expected = Number(await line());
  if (count >= expected) finish();
  await Promise.race([done, sleep(CONSUME_MS_MAX)]);
  await driver.stop();
  await Promise.race([consuming, sleep(5000)]);
  const result = { messages: count, seconds: count ? (last - began) / 1000 : 0, last: lastShared };
  return timed ? { ...result, p50_ms: ms(latencies, 50), p99_ms: ms(latencies, 99) } : result;
}

const [name, action, address, given] = process.argv.slice(2);
const driver = new DRIVERS[name](address);
let result = {};
if (action === "setup") {
  await driver.setup();
} else {
  await driver.open();
  const before = process.cpuUsage(); // without what imports cost
  const options = JSON.parse(given);
  result = await { push, "push-at-rate": pushAtRate, consume }[action](driver, options);
  const { user, system } = process.cpuUsage(before);
  result.cpu_seconds = (user + system) / 1e6;
  await driver.close();
}
console.log(JSON.stringify(result));
process.exit(0);
