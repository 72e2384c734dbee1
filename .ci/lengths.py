"""Fails for a file of more than 300 lines or a Python function of more than 60: split them by idea."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MAX_FILE, MAX_FUNCTION = 300, 60
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")


def too_long(path: Path) -> list[str]:
    """One line of text for each excess in a source file."""
    text = path.read_text()
    lines = text.count("\n")
    found = [f"{path}: {lines} lines"] if lines > MAX_FILE else []
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    return found


def main() -> int:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [Path(p) for p in listed if p.endswith(SUFFIXES)] + [Path("Snakefile")]
    found = [line for path in paths if path.exists() for line in too_long(path)]
    print("\n".join(found) or f"{len(paths)} files within {MAX_FILE} lines, functions within {MAX_FUNCTION}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
