# SPDX-License-Identifier: Apache-2.0
"""qemu: a machine under TCG whose program computes, reads and writes its disk, and the tools for disk images."""

import hashlib

from devlib.apps.registry import App
from devlib.apps.side import Side, file_digest

# A kernel by the multiboot protocol: entered in 32-bit mode, without paging, and with no library at all. It says what
# it found on the first serial port, and ends the machine through isa-debug-exit.
GUEST = r"""
typedef unsigned u32;
__attribute__((section(".first"), used)) static const u32 header[3] = {0x1BADB002, 0, 0xE4524FFE};
__asm__(".text\n.globl _start\n_start: movl $stack + 65536, %esp\n call work\n");
__attribute__((used)) char stack[65536];
static void out8(unsigned short port, unsigned char value)
{ __asm__ volatile("outb %0, %1" :: "a"(value), "Nd"(port)); }
static unsigned char in8(unsigned short port)
{ unsigned char value; __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static void say(const char *name, u32 value) {
  for (; *name; name++) out8(0x3F8, *name);
  out8(0x3F8, ' ');
  for (int at = 28; at >= 0; at -= 4) out8(0x3F8, "0123456789abcdef"[value >> at & 15]);
  out8(0x3F8, '\n');
}
static u32 seed = 7;
static u32 chance(void) { return seed = seed * 1664525 + 1013904223; }
static u32 *const memory = (u32 *)0x1000000;
static u32 sum(u32 count) { u32 all = 5381; for (u32 i = 0; i < count; i++) all = all * 33 + memory[i]; return all; }
static void sort(u32 count) {
  for (u32 gap = count / 2; gap; gap /= 2)
    for (u32 i = gap; i < count; i++) {
      u32 one = memory[i], at = i;
      for (; at >= gap && memory[at - gap] > one; at -= gap) memory[at] = memory[at - gap];
      memory[at] = one;
    }
}
static u32 primes(u32 limit) {
  u32 found = 0;
  for (u32 i = 0; i < limit; i++) memory[i] = 1;
  for (u32 i = 2; i < limit; i++) if (memory[i]) { found++; for (u32 j = i * 2; j < limit; j += i) memory[j] = 0; }
  return found;
}
static void transfer(u32 sector, unsigned short *data, int write) {
  while (in8(0x1F7) & 0x80) {}
  out8(0x1F6, 0xE0 | (sector >> 24 & 15)); out8(0x1F2, 1);
  out8(0x1F3, sector); out8(0x1F4, sector >> 8); out8(0x1F5, sector >> 16); out8(0x1F7, write ? 0x30 : 0x20);
  while ((in8(0x1F7) & 0x88) != 8) {}
  if (write) __asm__ volatile("cld; rep outsw" : "+S"(data) : "d"(0x1F0), "c"(256) : "memory");
  else __asm__ volatile("cld; rep insw" : "+D"(data) : "d"(0x1F0), "c"(256) : "memory");
}
__attribute__((used)) static void work(void) {
  const u32 words = MEBIBYTES << 18;
  for (u32 i = 0; i < words; i++) memory[i] = chance();
  say("filled", sum(words));
  sort(words / 16);
  say("sorted", sum(words));
  say("primes", primes(words / 2));
  for (u32 i = 0; i < SECTORS; i++) transfer(i, (unsigned short *)(memory + i * 128), 0);
  say("read", sum(SECTORS * 128));
  for (u32 i = 0; i < SECTORS; i += 3) transfer(SECTORS - 1 - i, (unsigned short *)(memory + i * 128), 1);
  while (in8(0x1F7) & 0x80) {}
  out8(0x1F7, 0xE7);
  while (in8(0x1F7) & 0x80) {}
  out8(0xF4, 16);
  for (;;) {}
}
"""
LAYOUT = "ENTRY(_start) SECTIONS { . = 1M; .all : { *(.first) *(.text*) *(.rodata*) *(.data*) *(.bss*) *(COMMON) } }"
ENDED = 33  # (16 << 1) | 1: what isa-debug-exit makes of the 16 written to it


def _qemu(side: Side) -> dict:
    size, sectors = (8, 1024) if side.quick else (64, 8192)
    layout, source = side.script("guest.ld", LAYOUT), side.script("guest.c", GUEST)
    side.run("gcc", "-m32", "-march=i686", "-O2", "-ffreestanding", "-fno-pie", "-fno-stack-protector", "-nostdlib",
             "-static", "-no-pie", "-Wl,--build-id=none", "-T", layout, f"-DMEBIBYTES={size}u", f"-DSECTORS={sectors}u",
             "-o", "guest", source)
    raw, disk, results = side.folder / "disk.raw", side.folder / "disk.qcow2", {}
    # One quarter is a hole.
    raw.write_bytes(hashlib.shake_128(b"disk").digest(sectors * 384) + bytes(sectors * 128))
    side.run("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, disk)
    results["compressed image"] = file_digest(disk)
    results["compared"] = side.run("qemu-img", "compare", raw, disk).decode()
    with side.clock():
        out = side.run("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-accel", "tcg,thread=multi", "-M", "pc",
                       "-smp", "2", "-m", f"{size + 64}M", "-display", "none", "-serial", "stdio",
                       "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-drive", f"file={disk},format=qcow2,if=ide",
                       "-kernel", side.folder / "guest", code=ENDED)
    results.update(line.split(" ", 1) for line in out.decode().splitlines())
    side.run("qemu-img", "check", "-q", disk)
    side.run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", disk, raw)
    results["disk"] = file_digest(raw)
    return results


APPS = [
    App("qemu", "a machine under TCG that computes and uses its disk; disk images converted and compared", _qemu,
        programs={"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "gcc": "gcc"}),
]
