# SPDX-License-Identifier: Apache-2.0
"""A TCP relay that delivers what it is given later: a slow network for one agent.

    python3 slow_relay.py LISTEN_PORT HOST:PORT DELAY_FILE

DELAY_FILE has the delay in seconds, each way, and may be changed at any time: bytes are delivered that long after they
came, in their order. Nothing is lost.
"""

import asyncio
import sys
import time


async def pump(reader, writer, delay):
    """Bytes are read as they come, whatever waits to be delivered: the sender sees a long line, not a full one."""
    line = asyncio.Queue()

    async def deliver():
        while (item := await line.get()) is not None:
            due, data = item
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(data)
            await writer.drain()

    delivering = asyncio.ensure_future(deliver())
    try:
        while data := await reader.read(65536):
            line.put_nowait((time.monotonic() + delay(), data))
        line.put_nowait(None)
        await delivering
    except OSError:
        delivering.cancel()
    finally:
        writer.close()


async def main(port, target, delay_file):
    host, target_port = target.rsplit(":", 1)

    def delay():
        with open(delay_file, encoding="ascii") as file:
            return float(file.read() or 0)

    async def serve(reader, writer):
        try:
            other_reader, other_writer = await asyncio.open_connection(host, int(target_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, other_writer, delay), pump(other_reader, writer, delay))

    server = await asyncio.start_server(serve, "127.0.0.1", int(port))
    print("relaying", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
