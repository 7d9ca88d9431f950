// node-redlock, told over standard input what to do: `node_redlock.mjs PORT[,PORT…]`, the password in REDIS_PASSWORD, its
// packages below $PEERS.
//
// `lock NAME TTL_MS WAIT_MS` and `unlock` are answered by `yes`, `no` or `error`.
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";

const require = createRequire(path.join(process.env.PEERS, "package.json"));
const { default: Redlock, ExecutionError } = require("redlock");
const { Redis } = require("ioredis");

const password = process.env.REDIS_PASSWORD;
const open = (port) => new Redis({ host: "127.0.0.1", port: Number(port), password });
const clients = process.argv[2].split(",").map(open);
// A client without a listener ends the process at the first lost connection.
for (const client of clients) client.on("error", () => {});
const delay = 10;

let lock;
async function obey([order, name, ttl, wait]) {
  if (order === "lock") {
    const patient = new Redlock(clients, { retryDelay: delay, retryJitter: 5, retryCount: Math.ceil(wait / delay) });
    patient.on("error", () => {});
    lock = await patient.acquire([name], Number(ttl));
  } else {
    await lock.release();
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  try {
    await obey(line.split(" "));
    console.log("yes");
  } catch (error) {
    console.log(error instanceof ExecutionError ? "no" : "error");
  }
}
