// node-redlock, told over standard input what to do: `peer.mjs PORT[,PORT…]`, with its packages below $PEERS.
// The commands and their answers are in mod.rs.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(path.join(process.env.PEERS, "node", "package.json"));
const { default: Redlock, ExecutionError } = require("redlock");
const { Redis } = require("ioredis");

const ports = process.argv[2].split(",");
const clients = ports.map((port) => new Redis({ host: "127.0.0.1", port: Number(port) }));
const poll = { retryDelay: 3, retryJitter: 2 };
const pause = 8;
const once = new Redlock(clients, { ...poll, retryCount: 0 });
const patient = new Redlock(clients, { ...poll, retryCount: 5000 });
const now = () => process.hrtime.bigint();
const said = (word) => (word ? "yes" : "no");

let lock;
// Whether it went as asked.
async function done(step) {
  try {
    lock = (await step()) ?? lock;
    return true;
  } catch (error) {
    if (error instanceof ExecutionError) return false;
    throw error;
  }
}

function section(place) {
  const [inside, count] = [path.join(place, "inside"), path.join(place, "count")];
  const begin = now();
  let overlaps = 0;
  try {
    fs.closeSync(fs.openSync(inside, "wx"));
  } catch {
    overlaps = 1;
  }
  const n = Number(fs.readFileSync(count, "utf8"));
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 0.2);
  fs.writeFileSync(count, String(n + 1));
  try {
    fs.unlinkSync(inside);
  } catch {
    overlaps = 1;
  }
  return [begin, now(), overlaps];
}

async function storm(name, ttl, count, place) {
  let overlaps = 0;
  const times = [];
  for (let i = 0; i < count; i++) {
    const held = await patient.acquire([name], ttl);
    const [begin, end, others] = section(place);
    await held.release();
    overlaps += others;
    times.push(begin, end);
    await sleep(Math.random() * pause);
  }
  return [overlaps, ...times];
}

async function obey([order, ...args]) {
  switch (order) {
    case "take":
    case "wait": {
      const redlock = order === "take" ? once : patient;
      const taken = await done(() => redlock.acquire(args[0].split(","), Number(args[1])));
      return [said(taken), now()];
    }
    case "free": {
      const asked = now();
      return [said(await done(() => once.release(lock).then(() => undefined))), asked];
    }
    case "extend":
      // It would not even ask once it believes the lock to be over.
      lock.expiration = Date.now() + 60_000;
      return [said(await done(() => once.extend(lock, Number(args[0]))))];
    case "storm":
      return storm(args[0], Number(args[1]), Number(args[2]), args[3]);
    default:
      throw new Error(order);
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  process.stdout.write(`@ ${(await obey(line.split(" "))).join(" ")}\n`);
}
clients.forEach((client) => client.disconnect());
