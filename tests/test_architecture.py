"""Who may import whom. Read from the source, so an import inside a function counts, too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVICES = ("producer", "gpu_worker", "sink")
PACKAGES = ("hiddenstream", *SERVICES, "demo")
MAX_LINES = 250
# What a pure module has no use for.
INPUT_OUTPUT = frozenset(
    {"asyncio", "fcntl", "glob", "http", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "select"}
    | {"shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "urllib"}
)
# What each part of the library may import of it, besides itself; services are checked apart.
LAYERS = {
    "hiddenstream.contracts": (),
    "hiddenstream.chassis": ("hiddenstream.contracts",),
    "hiddenstream.run_directory": ("hiddenstream.contracts",),
    "hiddenstream.status_page": (
        "hiddenstream.contracts",
        "hiddenstream.chassis",
        "hiddenstream.run_directory",
        "hiddenstream.progress",
    ),
    "sink": ("hiddenstream.contracts", "hiddenstream.chassis", "hiddenstream.run_directory", "hiddenstream.cli"),
    "producer": (
        "hiddenstream.contracts",
        "hiddenstream.chassis",
        "hiddenstream.run_directory",
        "hiddenstream.model_reference",
        "hiddenstream.status_page",
        "hiddenstream.cli",
    ),
}


@dataclass(frozen=True)
class Import:
    """One imported module: where, and whether only when a function is called."""

    importer: str
    module: str
    is_lazy: bool

    def is_within(self, *packages: str) -> bool:
        """Whether the imported module is one of *packages* or lies in one."""
        return any(self.module == package or self.module.startswith(f"{package}.") for package in packages)

    def __str__(self) -> str:
        return f"{self.importer} imports {self.module}{' in a function' if self.is_lazy else ''}"


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def source_files(*packages: str) -> list[Path]:
    return sorted(file for package in packages for file in (ROOT / package).rglob("*.py"))


def imports_of(file: Path) -> Iterator[Import]:
    """Yield what a module imports, also by ``importlib`` with a literal name; not what only type checkers read."""
    yield from _imports_in(ast.parse(file.read_text()).body, module_name(file), is_lazy=False)


def _imports_in(nodes: list[ast.stmt] | list[ast.AST], importer: str, *, is_lazy: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for module in _modules_named(node):
            yield Import(importer, module, is_lazy)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports_in(list(ast.iter_child_nodes(node)), importer, is_lazy=is_lazy or is_function)


def _modules_named(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            inner = [f"{module}.{alias.name}" for alias in names]
            return [name for name in inner if _is_ours(name)] or [module]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
    return []


def _is_ours(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


EVERY_IMPORT = [found for file in source_files(*PACKAGES) for found in imports_of(file)]


def imports_from(*packages: str) -> list[Import]:
    return [found for found in EVERY_IMPORT if Import("", found.importer, False).is_within(*packages)]


def shown(imports: list[Import]) -> list[str]:
    return [str(found) for found in imports]


def test_the_search_finds_imports_of_every_kind():
    """The rules below would hold for ever if imports were not found."""
    assert "gpu_worker.model imports torch" in shown(EVERY_IMPORT)
    assert "hiddenstream.sample imports torch in a function" in shown(EVERY_IMPORT)
    assert "hiddenstream.verify_command imports gpu_worker.recompute in a function" in shown(EVERY_IMPORT)
    assert "hiddenstream.sample imports torch" not in shown(EVERY_IMPORT)


def test_contracts_do_no_input_or_output():
    """Contracts import themselves, numpy, xxhash, msgpack and what of the standard library touches nothing."""
    allowed = (sys.stdlib_module_names - INPUT_OUTPUT) | {"numpy", "xxhash", "msgpack"}
    imports = [
        found for found in imports_from("hiddenstream.contracts") if not found.is_within("hiddenstream.contracts")
    ]

    assert [] == shown([found for found in imports if found.module.partition(".")[0] not in allowed])


@pytest.mark.parametrize("file", source_files("hiddenstream/contracts"), ids=lambda file: file.stem)
def test_contracts_open_nothing(file):
    """A contract takes and gives values and bytes."""
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)}

    assert set() == called & {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("service", SERVICES)
def test_services_never_import_one_another(service):
    """What services promise each other is a contract, not code."""
    others = [other for other in SERVICES if other != service]

    assert [] == shown([found for found in imports_from(service) if found.is_within(*others)])


def test_the_library_reaches_services_in_three_places_only():
    """The command line names them, the local pipeline starts them, and verify calls the oracle when asked to."""
    found = [found for found in imports_from("hiddenstream") if found.is_within(*SERVICES)]
    strangers = [one for one in found if not Import("", one.importer, False).is_within("hiddenstream.local")]

    assert ["hiddenstream.verify_command imports gpu_worker.recompute in a function"] == shown(strangers)


@pytest.mark.parametrize("part", LAYERS)
def test_layers_import_downwards_only(part):
    """Contracts know nobody, chassis and run directory know contracts, services know these."""
    found = [found for found in imports_from(part) if found.is_within("hiddenstream")]

    assert [] == shown([one for one in found if not one.is_within(part, *LAYERS[part])])


@pytest.mark.parametrize(
    ("library", "anywhere", "in_functions"),
    [
        ("torch", ("gpu_worker",), ("hiddenstream.sample", "demo")),
        ("transformers", ("gpu_worker",), ("producer", "hiddenstream.model_reference", "demo")),
        ("redis", ("gpu_worker", "producer", "hiddenstream.chassis.redis_connection"), ()),
        ("rq", ("gpu_worker", "producer"), ()),
        ("hiddenstream.chassis.redis_connection", ("gpu_worker", "producer", "hiddenstream.local"), ()),
    ],
)
def test_heavy_libraries_stay_where_they_are_needed(library, anywhere, in_functions):
    """torch, transformers and Redis are imported by the parts that cannot do without, and by no others."""
    found = [found for found in EVERY_IMPORT if found.is_within(library)]
    strangers = [
        one
        for one in found
        if not Import("", one.importer, False).is_within(*anywhere)
        and not (one.is_lazy and Import("", one.importer, False).is_within(*in_functions))
    ]

    assert found
    assert [] == shown(strangers)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("hiddenstream", {"torch", "transformers", "redis", "rq", "pyarrow"}),
        ("hiddenstream.cli", {"torch", "transformers", "redis", "rq", "pyarrow"}),
        ("hiddenstream.reader", {"torch", "transformers", "redis", "rq"}),
        ("sink.serve", {"torch", "transformers", "redis", "rq"}),
        ("producer.produce", {"torch", "transformers"}),
        ("gpu_worker.work", {"torch", "transformers"}),
    ],
)
def test_importing_a_module_loads_no_more_than_it_needs(module, unwanted):
    """A fresh interpreter has none of these after the import: they cost seconds and gigabytes."""
    program = f"import {module}, sys; print(*sys.modules)"

    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert set() == unwanted & set(ended.stdout.split())


def test_source_files_are_short():
    """A file past 250 lines is split."""
    lines = {module_name(file): len(file.read_text().splitlines()) for file in source_files(*PACKAGES, "bench", "docs")}

    assert {} == {name: count for name, count in lines.items() if count > MAX_LINES}
