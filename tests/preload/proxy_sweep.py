# SPDX-License-Identifier: Apache-2.0
"""Writes a program that calls every row of hooks.def once, from the list itself.

Each call must reach the driver's function of that very name once and the row's own hook once, so
that no row is missing, none stands for another, and nothing recurses.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

# Values that do no harm, by type; the rest are pointers to zeros, or zeros.
_VALUES = {
    "CUstream": "stream",
    "CUfunction": "function",
    "CUgraph": "graph",
    "CUgraphExec": "exec",
}

# What the fake driver looks at.
_TEXTS = {"cuModuleGetFunction": '"nothing"', "cuModuleLoadData": '".target sm_80"'}

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


_SPEC = importlib.util.spec_from_file_location(
    "check_hooks", Path(__file__).resolve().parents[2] / "tools" / "check_hooks.py"
)
check_hooks = importlib.util.module_from_spec(_SPEC)
sys.modules["check_hooks"] = check_hooks
_SPEC.loader.exec_module(check_hooks)
read_rows = check_hooks.read_rows


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
        values = ", ".join(_argument(each.strip()) for each in row.declared.split(","))
        if row.kind == "RESOLVE":
            values = values.replace("(const char*)zeros", '"cuInit"', 1).replace("(int)0", "13000")
        if row.base in _TEXTS:
            values = re.sub(r"\(const (char|void)\*\)zeros", _TEXTS[row.base], values)
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
