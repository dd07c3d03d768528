# SPDX-License-Identifier: Apache-2.0
"""chromium: processes of many kinds, forked from one, with code made at run time, shared memory and its own malloc."""

import re

from devlib.apps.registry import App
from devlib.apps.side import AppFailure, Side, digest

PAGE = r"""<!doctype html><html><head><meta charset="utf-8">
<style>td { border: 1px solid gray; padding: 2px } .odd { color: navy }</style></head>
<body><h1>Rows</h1><dl id="results"></dl>
<canvas id="picture" width="600" height="300"></canvas><table id="rows"></table>
<script>
// An open document in a frame: this page counts as loading until the last promise is kept.
const frame = document.createElement('iframe'); document.body.append(frame); frame.contentDocument.open();
const n = @N@; let seed = 7;
function chance() { return seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0 }
function sum(text) {
  let h = 5381; for (let i = 0; i < text.length; i++) h = (Math.imul(h, 33) + text.charCodeAt(i)) >>> 0; return h
}
function say(name, value) {
  const term = document.createElement('dt'), text = document.createElement('dd');
  term.textContent = name; text.textContent = value; document.getElementById('results').append(term, text);
}
const rows = [];
for (let i = 0; i < n; i++) rows.push({key: chance(), text: ('row ' + i + ' ').repeat(1 + chance() % 9)});
rows.sort((a, b) => a.key - b.key || (a.text < b.text ? -1 : 1));
say('sorted', sum(JSON.stringify(JSON.parse(JSON.stringify(rows)))));
const long = rows.map(row => row.text).join('');
say('replaced', sum(long.replace(/row (\d+)/g, (_, number) => '<' + number * 2 + '>')));
const map = new Map();
for (let i = 0; i < n * 5; i++) map.set('k' + chance() % n, (map.get('k' + chance() % n) || 0) + i);
say('map', map.size + ' ' + sum([...map].sort().join()));
const kept = [];
for (let i = 0; i < 200; i++) {
  kept.push(new Uint32Array(chance() % 200000).fill(i)); if (kept.length > 50) kept.shift();
}
say('buffers', kept.reduce((all, one) => (all + one.length * 7 + one[9]) >>> 0, 0));
const floats = new Float64Array(n * 20).map(() => chance()).sort();
say('floats', [1, 2, 3].map(at => floats[at * n]).join());
const code = Uint8Array.from([0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 97,
                              100, 100, 0, 0, 10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11]);
const add = new WebAssembly.Instance(new WebAssembly.Module(code)).exports.add;
let total = 0; for (let i = 0; i < n * 50; i++) total = add(total, i * 3); say('wasm', total);
const table = document.getElementById('rows');
for (let i = 0; i < n / 20; i++) {
  const row = table.insertRow(); row.className = i % 2 ? 'odd' : 'even';
  for (let j = 0; j < 5; j++) row.insertCell().textContent = rows[i * 5 + j].key;
}
for (let i = 0; i < n / 50; i++) table.deleteRow(chance() % table.rows.length);
const pen = document.getElementById('picture').getContext('2d');
for (let i = 0; i < n / 10; i++) {
  pen.fillStyle = `rgb(${i % 256},${i * 7 % 256},${i * 13 % 256})`; pen.fillRect(chance() % 600, chance() % 300, 40, 20)
}
say('picture', sum(pen.getImageData(0, 0, 600, 300).data.join()));
const source =
  'onmessage = e => { const a = new Uint32Array(e.data); for (let i = 0; i < 300; i++) a.sort().reverse(); ' +
  'let s = 0; for (const v of a) s = (s + v) >>> 0; postMessage(s + " " + a[0]) }';
const workers = [1, 2, 3].map(number => new Promise(done => {
  const worker = new Worker(URL.createObjectURL(new Blob([source]))); worker.onmessage = e => done(e.data);
  const data = new Uint32Array(5000).map((_, i) => i * number * 2654435761);
  worker.postMessage(data.buffer, [data.buffer]);
}));
const packed = new Response(new Blob([long]).stream().pipeThrough(new CompressionStream('gzip'))
  .pipeThrough(new DecompressionStream('gzip'))).text();
Promise.all([...workers, packed]).then(all => {
  say('packed', sum(all.pop())); say('workers', all.join()); say('end', 1);
  frame.contentDocument.close(); frame.remove();
});
</script></body></html>
"""
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
           "--disable-sync", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
           "--window-size=1000,1400", "--hide-scrollbars", "--no-pdf-header-footer")
_PDF_TIMES = re.compile(rb"/(CreationDate|ModDate)\s*\([^)]*\)|/ID\s*\[[^]]*\]")


def _chromium(side: Side) -> dict:
    page = side.script("page.html", PAGE.replace("@N@", "4000" if side.quick else "40000"))

    def chromium(*words) -> bytes:
        return side.run("chromium", *OPTIONS, f"--user-data-dir={side.folder}/profile", *words, f"file://{page}")

    dom = chromium("--dump-dom").decode()
    results = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", dom))
    if "end" not in results:
        raise AppFailure(f"the page did not run to its end: {results}")
    results["document"] = digest(dom)
    chromium(f"--screenshot={side.folder}/page.png")
    results["screenshot"] = digest((side.folder / "page.png").read_bytes())
    chromium(f"--print-to-pdf={side.folder}/page.pdf")
    results["pdf"] = digest(_PDF_TIMES.sub(b"", (side.folder / "page.pdf").read_bytes()))
    return results


APPS = [
    App("chromium", "a page with scripts, workers and pictures: the document, a screenshot, a PDF", _chromium,
        programs={"chromium": "chromium"}),
]
