# SPDX-License-Identifier: Apache-2.0
"""ffmpeg, ImageMagick and LibreOffice: large buffers that come and go, many libraries, threads of their own."""

import re

from devlib.apps.registry import App
from devlib.apps.side import Side, digest, file_digest


def _ffmpeg(side: Side) -> dict:
    seconds = "3" if side.quick else "20"
    exact = ("-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact")
    video = side.folder / "video.mkv"
    side.run("ffmpeg", "-v", "error", "-nostdin", "-f", "lavfi", "-i", f"testsrc2=size=1280x720:rate=25:duration={seconds}",
             "-f", "lavfi", "-i", f"sine=frequency=440:duration={seconds}", "-c:v", "mpeg4", "-threads", "2", "-c:a", "flac",
             *exact, "-y", video)
    results = {"encoded": file_digest(video)}
    results["frames"] = digest(side.run("ffmpeg", "-v", "error", "-nostdin", "-i", video, "-vf",
                                        "scale=640:360,hue=h=90,boxblur=3", "-f", "framemd5", *exact, "-"))
    results["audio"] = digest(side.run("ffmpeg", "-v", "error", "-nostdin", "-i", video, "-vn", "-f", "framemd5", *exact, "-"))
    return results


def _imagemagick(side: Side) -> dict:
    size = "800x600" if side.quick else "3000x2000"
    picture = side.folder / "picture.miff"
    side.run("convert", "-seed", "7", "-size", size, "plasma:red-blue", "-depth", "8", picture)
    results = {}
    for name, words in {"resized": ("-resize", "60%"), "blurred": ("-blur", "0x4"), "rotated": ("-rotate", "17"),
                        "edges": ("-colorspace", "Gray", "-edge", "2"), "reduced": ("+dither", "-colors", "32")}.items():
        results[name] = digest(side.run("convert", picture, *words, "-depth", "8", "rgb:-"))
    return results


# What differs from one plain run to the next: times, and the identifiers made of them.
_PDF_TIMES = re.compile(rb"/(CreationDate|ModDate)\s*\([^)]*\)|/ID\s*\[[^]]*\]|/DocChecksum\s*/[0-9A-F]+")


def _soffice(side: Side) -> dict:
    rows = 300 if side.quick else 4000
    table = "".join(f"<tr><td>row {row}</td><td>{row * row % 977}</td></tr>" for row in range(rows))
    side.script("page.html", f"<html><body><h1>Rows</h1><p>{'Some text. ' * 200}</p><table>{table}</table></body></html>")
    profile = f"-env:UserInstallation=file://{side.folder}/profile"
    results = {}
    for kind in ("txt", "pdf"):
        words = ("--headless", "--norestore", "--writer", "--convert-to", kind, "--outdir", side.folder / "out")
        side.run("soffice", profile, *words, "page.html")
        results[kind] = digest(_PDF_TIMES.sub(b"", (side.folder / "out" / f"page.{kind}").read_bytes()))
    return results


APPS = [
    App("ffmpeg", "encodes, decodes, filters: every frame", _ffmpeg, programs={"ffmpeg": "ffmpeg"}),
    App("imagemagick", "five operations on a picture: every byte", _imagemagick, programs={"convert": "imagemagick"}),
    App("soffice", "a page to text and to PDF", _soffice, programs={"soffice": "libreoffice-writer-nogui"}),
]
