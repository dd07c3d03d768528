"""A model file imported into leased memory, and two other processes that map its tensors without a copy."""

import subprocess
import time

from demo.report import Report, mib

LABEL = "gpt2"


def show_tensors(service, report: Report) -> None:
    report.part("c. a GPT-2-small-shaped model: safetensors file to shared tensors")
    model = service.directory / "gpt2.safetensors"
    make, mapper = (service.build_dir / "tests/support" / name for name in ("make_safetensors", "map_tensors"))
    begin = time.monotonic()
    service.run(make, model)
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

    # Both at once: two processes, one copy of the bytes.
    mappers = [service.popen(mapper, "--label", LABEL, "--file", model, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    try:
        for number, process in enumerate(mappers, 1):
            out, _ = process.communicate(timeout=120)
            last = out.strip().splitlines()[-1] if out.strip() else "(said nothing)"
            report.check(f"tensors: process {number} maps them, checksums equal the file's", last,
                         process.returncode == 0)
    finally:
        for process in mappers:
            if process.poll() is None:
                process.kill()
            process.wait()
    model.unlink()
