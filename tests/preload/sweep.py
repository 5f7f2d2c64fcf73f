# SPDX-License-Identifier: Apache-2.0
"""Writes a program that calls every row of hooks.def once, from the list itself.

Each call must reach the driver's function of that very name once and the row's own hook once, so
that no row is missing, none stands for another, and nothing recurses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ROW = re.compile(
    r"PENSTOCK_(HOOK|TWIN)\((\w+),\s*(\w+),\s*(.*?),\s*\((.*?)\),\s*\(([^()]*)\)\)", re.DOTALL
)
# Values that do no harm, by type; the rest are pointers to zeros, or zeros.
_VALUES = {"CUstream": "stream", "CUfunction": "function", "CUgraph": "graph", "CUgraphExec": "exec"}

_HEAD = """
static driver_api cu;
static CUstream stream;
static CUfunction function;
static CUgraph graph;
static CUgraphExec exec;

/* New ones each time, since some rows are their end. */
static void prepare(void) {
  memset(zeros, 0, sizeof(zeros));
  ((__typeof__(&cuStreamCreate))driver_symbol("cuStreamCreate"))(&stream, 0);
  ((__typeof__(&cuModuleGetFunction))driver_symbol("cuModuleGetFunction"))(&function, NULL,
                                                                           "nothing");
  ((__typeof__(&cuGraphCreate))driver_symbol("cuGraphCreate"))(&graph, 0);
  cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
}

static void check(const char* name, uint64_t driver, uint64_t hook, CUresult result) {
  if (driver == 1 && hook == 1 && result == 0) return;
  fprintf(stderr, "%s: %lu calls of the driver, %lu of the hook, result %d\\n", name,
          (unsigned long)driver, (unsigned long)hook, result);
  ++wrong;
}

int main(int count, char** arguments) {
  load_api(count > 1 ? arguments[1] : "dlopen", &cu);
  uint64_t (*driver)(const char*) = driver_symbol("fake_calls");
  uint64_t (*hook)(const char*) = driver_symbol(PENSTOCK_PROXY_ENTRY);
"""


@dataclass(frozen=True)
class Row:
    """One exported name.

    Attributes:
        exported: Its name.
        base: Its name for cuGetProcAddress.
        since: The CUDA that brought it.
        per_thread: Whether its default stream is the thread's.
        kind: What it does.
        parameters: As C text.
    """

    exported: str
    hook: str
    base: str
    since: int
    per_thread: bool
    has_stream: bool
    kind: str
    parameters: str


def read_rows(path: Path) -> list[Row]:
    """The rows of hooks.def, twins as two."""
    text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
    text = re.sub(r"#ifndef.*?#endif", "", text, flags=re.DOTALL)
    rows = []
    for macro, exported, second, middle, parameters, _ in _ROW.findall(text):
        fields = [field.strip().strip('"') for field in middle.split(",")]
        words = " ".join(parameters.split())
        if macro == "HOOK":
            base, since, stream, kind = fields
            has = stream != "NO_STREAM"
            rows.append(
                Row(exported, second, base, int(since), stream == "PER_THREAD", has, kind, words)
            )
        else:
            hook, base, since, twin_since, kind = fields
            rows.append(Row(exported, hook, base, int(since), False, True, kind, words))
            rows.append(Row(second, hook, base, int(twin_since), True, True, kind, words))
    return rows


def _argument(parameter: str) -> str:
    kind = re.sub(r"\w+$", "", parameter).strip()
    if kind.endswith("*"):
        return f"({kind})zeros"
    return _VALUES.get(kind, f"({kind})0")


def write_sweep(table: Path, output: Path) -> None:
    """Write the program."""
    lines = ['#include "api.h"', "#include <stdio.h>", "#include <string.h>", ""]
    lines += ["static _Alignas(64) char zeros[4096];", "static int wrong;", ""]
    lines += [_HEAD]
    rows = read_rows(table)
    for row in rows:
        name = row.exported
        values = ", ".join(_argument(each.strip()) for each in row.parameters.split(","))
        if row.kind == "RESOLVE":
            values = values.replace("(const char*)zeros", '"cuInit"', 1).replace("(int)0", "13000")
        lines += [
            "  {",
            "    prepare();",
            f'    const uint64_t d = driver("{name}");',
            f'    const uint64_t h = hook("{name}");',
            f"    const CUresult r = cu.{name} == NULL ? -1 : cu.{name}({values});",
            f'    check("{name}", driver("{name}") - d, hook("{name}") - h, r);',
            "  }",
        ]
    lines += [f'  printf("{len(rows)} rows, %d wrong\\n", wrong);', "  return wrong != 0;", "}", ""]
    output.write_text("\n".join(lines), encoding="utf-8")
