// SPDX-License-Identifier: Apache-2.0
// client.cjs PORT VERSION: what node-redis gets from a server, as JSON.
const { createClient } = require("@redis/client");

const [port, version] = process.argv.slice(2).map(Number);

async function main() {
  const client = createClient({ socket: { port, reconnectStrategy: false }, RESP: version });
  await client.connect();
  await client.flushDb();
  await client.set("k", "one");
  await client.set("long", Buffer.alloc(256000, "v"));
  const hello = await client.sendCommand(["HELLO"]);
  const told = {
    get: await client.get("k"),
    none: await client.get("none"),
    nx: await client.set("k", "two", { NX: true }),
    mget: await client.mGet(["none", "k"]),
    exists: await client.exists("k"),
    length: (await client.get("long")).length,
    keys: (await client.keys("*")).sort(),
    proto: Array.isArray(hello) ? hello[5] : hello instanceof Map ? hello.get("proto") : hello.proto,
    deleted: await client.del(["k", "long"]),
  };
  console.log(JSON.stringify(told));
  await client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
