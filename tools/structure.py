"""Print the size and structure of the product: modules, lines, packages, imports, paths.

`make structure` prints a table; `ARGS=--names` also lists what was counted. The files on a path
are listed by `python tools/files_touched.py --names`.
"""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("fleet", "importers", "telemetry", "trnwatch")
# Installed with the product, and beside it as bench is: nothing of the product imports it.
BESIDE = "drills"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def product() -> dict[str, Path]:
    """Return every module of the product but migrations, by its dotted name."""
    found = (path for top in PRODUCT for path in sorted((ROOT / top).rglob("*.py")))
    return {name_of(path): path for path in found if "migrations" not in path.parts}


def lines_of(folder: str) -> int:
    return sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py"))


def imports_of(tree: ast.AST, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found & known


def single_use(trees: dict[str, ast.Module]) -> tuple[list[str], int]:
    """Return the private functions used exactly once, and the number of all."""
    defined: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_") and not node.name.startswith("__"):
                    defined[node.name] += 1
            elif isinstance(node, ast.Name):
                named[node.id] += 1
            elif isinstance(node, ast.Attribute):
                named[node.attr] += 1
    once = [name for name, times in defined.items() if times == 1 and named[name] == 1]
    return once, sum(defined.values())


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a cycle (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(group)

    sys.setrecursionlimit(10_000)
    for name in list(edges):
        if name not in index:
            visit(name)
    return found


def main() -> None:
    """Measure and print."""
    files = product()
    trees = {name: ast.parse(path.read_text()) for name, path in files.items()}
    lines = {name: path.read_text().count("\n") for name, path in files.items()}
    edges = {name: imports_of(tree, set(files)) - {name} for name, tree in trees.items()}
    importers = defaultdict(set)
    for name, others in edges.items():
        for other in others:
            importers[other].add(name)
    neighbours = [
        name
        for name, by in importers.items()
        if len(by) == 1 and next(iter(by)).rpartition(".")[0] == name.rpartition(".")[0]
    ]
    once, n_private = single_use(trees)
    packages = [p for p in (ROOT / "fleet").iterdir() if (p / "__init__.py").exists()]
    packages = [p for p in packages if p.name not in {"migrations", "__pycache__"}]
    singles = [p for p in (ROOT / "fleet").glob("*.py") if p.name != "__init__.py"]
    sizes = sorted(lines.values())
    rows: list[tuple[str, object]] = [
        ("modules", len(files)),
        ("lines of Python", sum(sizes)),
        *(
            (f"lines of {top}", sum(n for name, n in lines.items() if name.split(".")[0] == top))
            for top in PRODUCT
        ),
        (f"lines of {BESIDE}, beside the product", lines_of(BESIDE)),
        ("longest module", sizes[-1]),
        (
            "median and 95th percentile of lines",
            f"{sizes[len(sizes) // 2]}, {sizes[len(sizes) * 95 // 100]}",
        ),
        ("packages in fleet", len(packages)),
        ("single modules in fleet", len(singles)),
        ("modules whose only importer is a neighbour", len(neighbours)),
        ("private functions used exactly once", f"{len(once)} of {n_private}"),
        ("import cycles", len(cycles(edges))),
    ]
    # In its own process: it runs the product, and this one only reads it.
    paths = subprocess.run(
        [sys.executable, str(ROOT / "tools/files_touched.py")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in paths.stdout.splitlines():
        label, _, number = line.partition("\t")
        rows.append((label, number))
    for label, value in rows:
        print(f"{label:<46}{value}")
    if "--names" in sys.argv:
        print("\nOnly importer is a neighbour:", *sorted(neighbours), sep="\n  ")
        print("\nPrivate and used once:", *sorted(once), sep="\n  ")


if __name__ == "__main__":
    main()
