# SPDX-License-Identifier: Apache-2.0
"""A model file imported into leased memory, and two other processes that map its tensors without a copy."""

import json
import subprocess
import time

from demo.report import Report, mib

LABEL = "gpt2"


def show_tensors(service, report: Report) -> None:
    report.part("c. a GPT-2-small-shaped model: safetensors file to shared tensors")
    model = service.directory / "gpt2.safetensors"
    make, mapper = (service.build_dir / "tests/support" / name for name in ("make_safetensors", "map_tensors"))
    begin = time.monotonic()
    checksums = service.directory / "gpt2.crc32c.json"
    service.run(make, model, "--checksums", checksums)
    size = model.stat().st_size
    report.note(f"wrote {model.name}, {mib(size)}, in {time.monotonic() - begin:.1f} s")

    begin = time.monotonic()
    service.cli("tensor", "import", model, "--pool", "main", "--label", LABEL)
    seconds = time.monotonic() - begin
    report.note(f"imported in {seconds:.1f} s ({size / 2**20 / seconds:.0f} MiB/s, checksums included)")
    tensors = service.cli("tensor", "list", LABEL).json["tensors"]
    held = sum(tensor["bytes"] for tensor in tensors)
    report.check("tensors: imported into a lease", f"{len(tensors)} tensors, {mib(held)}",
                 len(tensors) > 100 and 0 < held <= size)

    # Both at once: two processes, one copy of the bytes. Each compares with another source of truth.
    sources = (("--file", model), ("--checksums", checksums))
    mappers = [service.popen(mapper, "--json", "--label", LABEL, *source, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for source in sources]
    seen = []
    try:
        for process, (how, _) in zip(mappers, sources):
            out, _ = process.communicate(timeout=120)
            seen.append(json.loads(out) if process.returncode in (0, 8) else {})
            told = seen[-1] or {"tensors": 0, "mismatches": out.strip(), "private_copy_pages": "?"}
            report.check(f"tensors: process {len(seen)} maps them and compares ({how[2:]})",
                         f"{told['tensors']} tensors, wrong {told['mismatches'] or 'none'}, pages copied "
                         f"{told['private_copy_pages']}", process.returncode == 0)
    finally:
        for process in mappers:
            if process.poll() is None:
                process.kill()
            process.wait()
    inodes = {told.get("inode") for told in seen}
    report.check("tensors: both map the same object", f"inode {inodes}", len(seen) == 2 and len(inodes) == 1)
    model.unlink()
