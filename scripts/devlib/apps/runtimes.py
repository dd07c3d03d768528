# SPDX-License-Identifier: Apache-2.0
"""node and java: runtimes that keep their objects in heaps of their own and buffers in malloc."""

from devlib.apps.registry import App
from devlib.apps.side import Side

NODE = r"""
const crypto = require('crypto'), zlib = require('zlib');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
const hash = data => crypto.createHash('sha256').update(data).digest('hex').slice(0, 32);
function chance(seed) { return () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 4294967296; }
function work(size, seed) {
  const next = chance(seed), kept = [];
  for (let at = 0; at < size; ++at) {
    const buffer = Buffer.alloc(1 + Math.floor(next() * 60000), at % 251);
    buffer.writeUInt8(Math.floor(next() * 255), 0);
    kept.push(buffer);
    if (kept.length > 400) kept.splice(Math.floor(next() * 400), 1);
  }
  return hash(Buffer.concat(kept));
}
if (!isMainThread) { parentPort.postMessage(work(workerData.size, workerData.seed)); return; }
const size = parseInt(process.argv[2]);
console.log('buffers', work(size, 1));
const rows = [], next = chance(2);
for (let at = 0; at < size * 10; ++at) rows.push({ key: Math.floor(next() * 1e9), text: 'row ' + at });
rows.sort((a, b) => a.key - b.key);
const text = JSON.stringify(rows);
console.log('json', hash(text), JSON.parse(text).length);
const floats = new Float64Array(size * 100);
for (let at = 0; at < floats.length; ++at) floats[at] = next();
floats.sort();
console.log('typed array', hash(Buffer.from(floats.buffer)));
const quality = { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 5 } };
const packed = zlib.gzipSync(text), brotli = zlib.brotliCompressSync(text.slice(0, 400000), quality);
console.log('zlib', hash(zlib.gunzipSync(packed)), hash(brotli));
console.log('child', hash(execFileSync('/bin/cat', { input: text, maxBuffer: 1 << 28 })));
Promise.all([3, 4].map(seed => new Promise((done, failed) =>
  new Worker(__filename, { workerData: { size, seed } }).on('message', done).on('error', failed)))).then(all => console.log('workers', all.join(' ')));
"""
JAVA = r"""
import java.nio.*; import java.util.*; import java.util.concurrent.*; import java.util.stream.*; import java.util.zip.*;
public class Program {
  static long crc(byte[] data) { CRC32 sum = new CRC32(); sum.update(data); return sum.getValue(); }
  public static void main(String[] words) throws Exception {
    int size = Integer.parseInt(words[0]);
    Random chance = new Random(7);
    TreeMap<Integer, String> map = new TreeMap<>();
    for (int i = 0; i < size * 20; ++i) map.merge(chance.nextInt(size * 5), "v" + i, (a, b) -> a.length() < 40 ? a + b : b);
    System.out.println("map " + map.size() + " " + map.hashCode());
    List<ByteBuffer> direct = new ArrayList<>();  // malloc'ed by the runtime
    CRC32 sum = new CRC32();
    for (int i = 0; i < size; ++i) {
      ByteBuffer buffer = ByteBuffer.allocateDirect(1 + chance.nextInt(60000));
      while (buffer.hasRemaining()) buffer.put((byte) i);
      buffer.flip(); sum.update(buffer); direct.add(buffer);
      if (direct.size() > 300) direct.remove(chance.nextInt(300));
    }
    for (ByteBuffer buffer : direct) { buffer.rewind(); sum.update(buffer); }
    System.out.println("direct " + sum.getValue());
    byte[] text = map.toString().getBytes("UTF-8");
    Deflater deflater = new Deflater(6); deflater.setInput(text); deflater.finish();
    byte[] packed = new byte[text.length + 1000]; int length = deflater.deflate(packed); deflater.end();
    Inflater inflater = new Inflater(); inflater.setInput(packed, 0, length);
    byte[] again = new byte[text.length]; int got = inflater.inflate(again); inflater.end();
    System.out.println("zip " + length + " " + (got == text.length) + " " + (crc(again) == crc(text)));
    ExecutorService pool = Executors.newFixedThreadPool(4);
    List<Future<Long>> sums = new ArrayList<>();
    for (int job = 0; job < 8; ++job) {
      final int seed = job;
      sums.add(pool.submit(() -> {
        long[] all = new Random(seed).longs(size * 20L).toArray();
        Arrays.parallelSort(all);
        return all[all.length / 2];
      }));
    }
    for (Future<Long> one : sums) System.out.println("sorted" + sums.indexOf(one) + " " + one.get());
    pool.shutdown();
    Process child = new ProcessBuilder("/bin/cat").start();
    Thread writer = new Thread(() -> {
      try (var out = child.getOutputStream()) { out.write(text); } catch (java.io.IOException e) { }
    });
    writer.start();
    System.out.println("child " + crc(child.getInputStream().readAllBytes()) + " " + child.waitFor());
  }
}
"""


def _lines(out: bytes) -> dict:
    return dict(line.split(" ", 1) for line in out.decode().splitlines())


def _node(side: Side) -> dict:
    return _lines(side.run("node", side.script("program.js", NODE), "3000" if side.quick else "15000"))


def _java(side: Side) -> dict:
    side.script("Program.java", JAVA)
    side.run("javac", "-J-Xmx256m", "Program.java")
    results = {}
    for collector in ("G1", "Serial"):
        out = side.run("java", "-Xmx384m", f"-XX:+Use{collector}GC", "Program", "2000" if side.quick else "10000")
        results.update({f"{collector}: {name}": text for name, text in _lines(out).items()})
    return results


APPS = [
    App("node", "buffers, JSON, typed arrays, zlib, workers, a child", _node, programs={"node": "nodejs"}),
    App("java", "javac; collections, direct buffers, zip, threads, a child; two collectors", _java,
        programs={"java": "default-jre-headless", "javac": "default-jdk-headless"}),
]
