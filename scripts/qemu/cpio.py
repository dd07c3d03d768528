# SPDX-License-Identifier: Apache-2.0
"""The archive an initramfs is made of ("newc" cpio), written from a list of entries. Pure: bytes in, bytes out."""

import stat


class Archive:
    """Collects files in order; parents are made on the way. Nothing depends on the clock or on who runs this, so
    that equal contents give equal bytes. Times of files are kept where they are given: Python compares that of a
    module with the one its compiled form was made from."""

    def __init__(self):
        self._parts = []
        self._inode = 0
        self._folders = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        path = path.strip("/")
        if path and path not in self._folders:
            self.folder(path.rpartition("/")[0])
            self._folders.add(path)
            self._entry(path, stat.S_IFDIR | mode, b"")

    def file(self, path: str, data: bytes, mode: int = 0o644, mtime: int = 0) -> None:
        path = path.strip("/")
        self.folder(path.rpartition("/")[0])
        self._entry(path, stat.S_IFREG | mode, data, mtime=mtime)

    def link(self, path: str, target: str) -> None:
        path = path.strip("/")
        self.folder(path.rpartition("/")[0])
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def device(self, path: str, major: int, minor: int) -> None:
        """A character device: the kernel opens /dev/console before it starts init."""
        path = path.strip("/")
        self.folder(path.rpartition("/")[0])
        self._entry(path, stat.S_IFCHR | 0o600, b"", major, minor)

    def bytes(self) -> bytes:
        return b"".join(self._parts) + self._record("TRAILER!!!", 0, 0, b"", 0, 0, 0)

    def _entry(self, path: str, mode: int, data: bytes, major: int = 0, minor: int = 0, mtime: int = 0) -> None:
        self._inode += 1
        self._parts.append(self._record(path, self._inode, mode, data, major, minor, mtime))

    @staticmethod
    def _record(path: str, inode: int, mode: int, data: bytes, major: int, minor: int, mtime: int) -> bytes:
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device of the file (2), device it stands for (2), name, checksum
        numbers = (inode, mode, 0, 0, 1, mtime, len(data), 0, 0, major, minor, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers) + name
        return header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4)
