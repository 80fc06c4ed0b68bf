"""The habits of this codebase, as a test: sizes, import direction, purity, words."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "ringdove").rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}

#: Which packages a package may import, besides itself and the leaves at the top.
LAYERS = {
    "core": set(),
    "protocol": {"core"},
    "stores": {"core", "protocol"},
    "models": {"core"},
    "controllers": {"core", "stores"},
    "cluster": {"core", "stores"},
    "client": {"core", "protocol", "stores", "controllers"},
    "frontends": {"core", "protocol", "stores", "controllers", "models", "metrics"},
    "bench": {
        "core",
        "protocol",
        "stores",
        "controllers",
        "client",
        "cli",
        "server",
        "server_config",
        "cluster",
        "spark",
        "tracing",
        "fleet",
    },
    "cli": {
        "core",
        "stores",
        "controllers",
        "client",
        "bench",
        "server",
        "cluster",
        "demo",
        "models",
        "spark",
        "tiers",
        "tracing",
        "fleet",
    },
    "demo": {"core", "client", "cluster", "bench", "spark"},
    "tiers": {"core", "protocol", "stores", "controllers", "client", "cluster"},
    "fleet": {"core", "protocol", "controllers", "client", "tracing"},
    "spark": {"core", "stores", "controllers", "client", "tracing"},
    "tracing": {"core", "stores", "controllers", "client"},
}
LEAVES = {
    "errors", "limits", "clock", "version", "pending", "config", "serving", "allocation", "log",
    "spinning",
}  # fmt: skip
PURE_FORBIDDEN = {"asyncio", "socket", "lmdb", "redis", "threading", "time", "pathlib"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "ringdove":
                found |= {f"ringdove.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", SOURCES + EXPERIMENTS + TESTS, ids=_name)
def test_a_module_is_short_and_its_functions_are_too(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX, "split it along a seam of the data path"
    assert path.stem not in FORBIDDEN_NAMES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES + EXPERIMENTS, ids=_name)
def test_a_module_opens_with_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_imports_point_down(path):
    layer = path.relative_to(ROOT / "src" / "ringdove").parts[0]
    if layer not in LAYERS:
        return
    allowed = LAYERS[layer] | LEAVES | {layer}
    for module in _imports(path):
        parts = module.split(".")
        if parts[0] == "ringdove" and len(parts) > 1:
            assert parts[1] in allowed, f"{layer} must not import {module}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src" / "ringdove" / "core").glob("*.py")), ids=_name
)
def test_the_core_is_pure(path):
    roots = {module.split(".")[0] for module in _imports(path)}
    assert not roots & PURE_FORBIDDEN
    assert "ringdove.pending" not in _imports(path)


def test_every_limit_has_its_reason():
    lines = (ROOT / "src" / "ringdove" / "limits.py").read_text().splitlines()
    for number, line in enumerate(lines):
        if line and line[0].isupper() and " = " in line:
            above = lines[number - 1]
            assert above.startswith("#:") or (above[:1].isupper() and " = " in above), line


def test_every_limit_is_used():
    used = "".join(path.read_text() for path in SOURCES if path.name != "limits.py")
    for node in ast.parse((ROOT / "src" / "ringdove" / "limits.py").read_text()).body:
        if isinstance(node, ast.Assign):
            name = node.targets[0].id
            assert name in used, f"{name} limits nothing"


def test_every_error_has_a_code_of_its_own():
    from ringdove import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    codes = [c.code for c in classes if issubclass(c, errors.RingdoveError)]
    assert len(codes) == len(set(codes))


def test_no_generated_file_is_tracked():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    bad = [n for n in listed.stdout.split("\n") if "__pycache__" in n or n.endswith(".egg-info")]
    assert not bad
