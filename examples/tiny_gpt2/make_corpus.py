# SPDX-License-Identifier: Apache-2.0
"""Gather the prose of two language references into the text that the tiny GPT-2 learns from.

Sources: the help topics of the Python that runs this script, and the API pages (Markdown) of a
Node.js. Only whole sentences are kept: code, grammar, tables, lists and markup go. corpus.txt.xz
in this folder is the result for Python 3.11.2 and Node.js 20.20.2; LICENSES.md has their terms.

    python examples/tiny_gpt2/make_corpus.py --node-api NODE_SOURCE/doc/api
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

HERE = Path(__file__).resolve().parent
END_OF_TEXT = "<|endoftext|>"
_ASCII = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2026": "..."}
)
_MARKDOWN = (
    (re.compile(r"```.*?```", re.DOTALL), ""),
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"\[([^\]]*)\](\[[^\]]*\]|\([^)]*\))?"), r"\1"),
    (re.compile(r"[`\\]|\*\*"), ""),
)
_EMPHASIS = re.compile(r"\*(\w+)\*")


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph, on one line, is a sentence or more of plain English."""
    if len(paragraph) < 80 or not paragraph[0].isupper() or paragraph[-1] != ".":
        return False
    if not paragraph.isascii() or any(mark in paragraph for mark in ("::", "=>", " | ", "{", "_(")):
        return False
    return sum(c.isalpha() or c == " " for c in paragraph) > 0.87 * len(paragraph)


def paragraphs(text: str) -> Iterator[str]:
    """The prose paragraphs of a page, each on one line."""
    for paragraph in re.split(r"\n\s*\n", text.translate(_ASCII)):
        line = _EMPHASIS.sub(r"\1", " ".join(paragraph.split()))
        if line and is_prose(line):
            yield line


def pages(node_api: Path) -> Iterator[str]:
    """Every page of both references as plain text."""
    yield from topics.values()
    for path in sorted(node_api.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for pattern, replacement in _MARKDOWN:
            text = pattern.sub(replacement, text)
        yield text


def main() -> None:
    """Write corpus.txt.xz: a paragraph a line, pages apart by the end-of-text mark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node-api", type=Path, required=True, help="doc/api of a Node.js source")
    parser.add_argument("--output", type=Path, default=HERE / "corpus.txt.xz")
    args = parser.parse_args()
    seen: set[str] = set()
    texts = []
    for page in pages(args.node_api):
        fresh = [line for line in dict.fromkeys(paragraphs(page)) if line not in seen]
        seen.update(fresh)
        if fresh:
            texts.append("\n".join(fresh) + "\n")
    corpus = (END_OF_TEXT + "\n").join(texts)
    args.output.write_bytes(lzma.compress(corpus.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(texts)} pages, {len(seen)} paragraphs, {len(corpus)} characters")


if __name__ == "__main__":
    main()
