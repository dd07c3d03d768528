# SPDX-License-Identifier: Apache-2.0
"""clang, lld, rustc, go and gdb: compilers and a debugger, each with a way of its own with memory."""

import os
import pathlib
import re

from devlib.apps.registry import App
from devlib.apps.side import Side, file_digest
from devlib.commands import ROOT

SOURCES = ("core/base/units.cc", "daemon/model/placement.cc", "tiering/policy/benefit_density.cc")
RUST = r"""
use std::collections::BTreeMap;
fn main() {
    let mut map: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut seed = 7u64;
    for i in 0..200_000u64 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        map.entry(seed >> 48).or_default().push(format!("{i}:{seed}"));
    }
    let workers: Vec<_> = (0..4).map(|t| std::thread::spawn(move || (0..100_000u64).map(|i| i.wrapping_mul(t + 1)).sum::<u64>())).collect();
    let sums: Vec<u64> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    println!("map {} {} threads {:?}", map.len(), map.values().map(|v| v.iter().map(|s| s.len()).sum::<usize>()).sum::<usize>(), sums);
}
"""
GO = r"""
package main
import ("crypto/sha256"; "fmt"; "sort"; "strings"; "sync")
func main() {
	parts := make([]string, 4)
	var all sync.WaitGroup
	for t := range parts {
		all.Add(1)
		go func() {
			defer all.Done()
			words := map[string]int{}
			for i := 0; i < 100000; i++ { words[fmt.Sprintf("w%d", (i*7919+t)%5000)]++ }
			keys := make([]string, 0, len(words))
			for key := range words { keys = append(keys, key) }
			sort.Strings(keys)
			parts[t] = strings.Join(keys, ",")
		}()
	}
	all.Wait()
	fmt.Printf("%x\n", sha256.Sum256([]byte(strings.Join(parts, ";"))))
}
"""


def _clang(side: Side) -> dict:
    results = {}
    objects = []
    for source in SOURCES[:2] if side.quick else SOURCES:
        out = side.folder / (source.replace("/", "_") + ".o")
        side.run("clang++", "-std=c++20", "-O2", "-fPIC", f"-I{ROOT}", "-c", source, "-o", out, cwd=ROOT)
        results[source] = file_digest(out)
        objects.append(out)
    library = side.folder / "library.so"
    side.run("ld.lld", "-shared", "--threads=2", "--build-id=sha1", "-o", library, *objects)
    results["linked"] = file_digest(library)
    return results


def _rustc(side: Side) -> dict:
    side.script("program.rs", RUST)
    words = ("--edition", "2021", "-O", "-C", "codegen-units=4", "-C", "metadata=fixed")
    # A rustc of rustup's finds its toolchain in the home of whoever runs this.
    home = os.environ.get("RUSTUP_HOME") or str(pathlib.Path.home() / ".rustup")
    side.run("rustc", *words, "-o", "program", "program.rs", env={"RUSTUP_HOME": home})
    return {"ran": side.run(side.folder / "program").decode()}


def _go(side: Side) -> dict:
    module = side.folder / "module"  # go does not look for modules where temporary files are
    module.mkdir()
    side.script("module/go.mod", "module program\n\ngo 1.22\n")
    side.script("module/main.go", GO)
    env = {"GOCACHE": str(side.folder / "cache"), "GOPATH": str(side.folder / "path"), "GOFLAGS": "-mod=mod",
           "GOTOOLCHAIN": "local", "HOME": str(side.folder)}
    side.run("go", "build", "-trimpath", "-p", "2", "-o", "program", ".", env=env, cwd=module)
    return {"program": file_digest(module / "program"), "ran": side.run(module / "program").decode()}


def _gdb(side: Side) -> dict:
    source = side.script("program.c", "int add(int a, int b) { return a + b; }\nint main(void) { int s = 0; "
                         "for (int i = 0; i < 5; i++)\n  s = add(s, i);\n  return s; }\n")
    side.run("gcc", "-g", "-O0", "-o", "program", source)
    commands = []
    # What it debugs runs without our library, which would be one more in its lists.
    for word in ("set exec-wrapper env -i", "info functions", "disassemble main", "break add",
                 "run", "info args", "continue", "info args", "info types", "backtrace", "delete", "continue"):
        commands += ["-ex", word]
    out = side.run("gdb", "-q", "-nx", "-batch", *commands, "./program")
    return {"session": re.sub(r"process \d+", "process", out.decode())}


APPS = [
    App("clang", "clang++ and lld on files of this project: every byte", _clang,
        programs={"clang++": "clang", "ld.lld": "lld"}, ddr="8M"),
    App("rustc", "a program with threads, compiled and run", _rustc, programs={"rustc": "rustc"}),
    App("go", "go build, and the program that it made (both are static: they run beside us)", _go,
        programs={"go": "golang-go"}),
    App("gdb", "a session with a program of its own", _gdb, programs={"gdb": "gdb", "gcc": "gcc"}, ddr="8M"),
]
