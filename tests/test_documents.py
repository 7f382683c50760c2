"""The documents say what the code does: a name that is missing, stale or dangling fails here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import generate
from gpu_worker.facts import OUTCOMES
from hiddenstream.chassis.settings import describe
from hiddenstream.cli import COMMANDS, settings_of
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.sink_api import SHARD_REFUSALS
from hiddenstream.verify.findings import DAMAGE, NOTES
from producer.rejections import REJECTION_REASONS

ROOT = Path(__file__).parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
SOURCES = [
    file for package in ("hiddenstream", "producer", "gpu_worker", "sink") for file in (ROOT / package).rglob("*.py")
]
FOREIGN_FOLDERS = {"runs", "build", "shared", "node_modules"}
MARKDOWN = sorted(
    file
    for file in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in FOREIGN_FOLDERS for part in file.relative_to(ROOT).parts[:-1])
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DECISION_HEADINGS = ["Context", "Decision", "What we gave up", "How we would notice it was wrong"]
EVENT_NAME = re.compile(r"[a-z]+(_[a-z]+)+")
MACHINE_PATH = re.compile(r"(?<![\w.:/])(/(home|root|tmp|work|mnt|opt|usr|var|Users)\b[/\w]*|[A-Z]:\\\w+)")


def section(title: str) -> str:
    """Return the part of operations.md under a heading, whatever its depth."""
    hashes, start = next(
        (found[1], found.end()) for found in re.finditer(r"^(#+) (.*)$", OPERATIONS, re.MULTILINE) if found[2] == title
    )
    following = re.search(rf"^#{{1,{len(hashes)}}} ", OPERATIONS[start:], re.MULTILINE)
    return OPERATIONS[start : start + following.start()] if following else OPERATIONS[start:]


def assigned_constants(tree: ast.Module) -> dict[str, object]:
    """Return the constants that a module assigns to names at its top level."""
    constants: dict[str, object] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        (target,) = node.targets
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        if len(names) == len(values):
            pairs = zip(names, values, strict=True)
            constants |= {ast.unparse(name): value.value for name, value in pairs if isinstance(value, ast.Constant)}
    return constants


def all_constants(file: Path) -> dict[str, object]:
    """Return a module's own constants and those that it imports from our modules by name."""
    tree = ast.parse(file.read_text())
    constants: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            source = ROOT / f"{node.module.replace('.', '/')}.py"
            theirs = assigned_constants(ast.parse(source.read_text())) if source.exists() else {}
            constants |= {alias.name: theirs[alias.name] for alias in node.names if alias.name in theirs}
    return constants | assigned_constants(tree)


def logged_events(file: Path) -> Iterator[str]:
    """Yield the event of each ``log(logger, EVENT, ...)`` and ``_LOGGER.level(EVENT, ...)`` of a module."""
    constants = all_constants(file)
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        if called == "log":
            event = node.args[1]
        elif re.fullmatch(r"_LOGGER\.(debug|info|warning|error|exception|critical)", called):
            event = node.args[0]
        else:
            continue
        value = event.value if isinstance(event, ast.Constant) else constants.get(ast.unparse(event))
        assert isinstance(value, str), f"{file.name}: the event {ast.unparse(event)} is no constant"
        yield value


def events_of(package: str) -> set[str]:
    """Return every event that a package logs."""
    return {event for file in SOURCES if file.is_relative_to(ROOT / package) for event in logged_events(file)}


def exit_codes(file: Path) -> Iterator[int]:
    """Yield the exit codes that a module names: of errors, of commands, and of ``os._exit``."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="exit_code")], value=ast.Constant(value=int(code))):
                yield code
            case ast.Call(func=ast.Attribute(attr="_exit"), args=[ast.Constant(value=int(code))]):
                yield code
            case ast.FunctionDef(name="exit_code" | "run_command" | "main" | "run"):
                returns = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
                constants = [part for value in returns if value for part in ast.walk(value)]
                yield from (
                    part.value for part in constants if isinstance(part, ast.Constant) and type(part.value) is int
                )
    for name, code in assigned_constants(tree).items():
        if name.endswith("_EXIT") or name.startswith(("COMPLETE", "NOT_COMPLETE")):
            assert isinstance(code, int)
            yield code


def anchors(text: str) -> set[str]:
    """Return the anchors that a document's headings get on GitHub."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_generated_tables_are_fresh():
    """The tables of settings and metrics are those that the code makes now."""
    assert generate.with_fresh_tables(OPERATIONS) == OPERATIONS, "run: python -m docs.generate"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_is_documented(command):
    """Each command has a table, with a row for each of its settings."""
    table = section(f"hiddenstream {command}")

    assert [] == [flag for flag, _, _ in describe(settings_of(command)) if f"\n| `{flag}` |" not in table]


@pytest.mark.parametrize("service", generate.METRICS)
def test_every_metric_is_documented(service):
    """Each series of each service has a row under the name that Prometheus sees."""
    names = [generate.exposed_name(metric) for metric in generate.declared_metrics(service)]

    assert [] == [name for name in names if f"\n| `{name}` |" not in section("Metrics")]


def test_defaults_do_not_depend_on_the_machine():
    """The worker's name defaults to the host's, which the table says in words."""
    assert "| `--name` | the host's name |" in section("hiddenstream work")


@pytest.mark.parametrize(
    ("title", "reasons"),
    [
        ("Rejection reasons", REJECTION_REASONS),
        ("Refusal reasons", SHARD_REFUSALS),
        ("Quarantine reasons", re.findall(r"``([a-z_]+)``", Quarantined.__doc__ or "")),
        ("What verify finds", DAMAGE + NOTES),
        ("Worker", OUTCOMES),
    ],
)
def test_every_reason_is_documented(title, reasons):
    """Every word of a closed list that a user meets has its row."""
    assert reasons
    assert [] == sorted(reason for reason in reasons if f"`{reason}`" not in section(title))


@pytest.mark.parametrize(
    ("package", "title"),
    [("producer", "Producer"), ("gpu_worker", "Worker"), ("sink", "Sink"), ("hiddenstream", "Common")],
)
def test_every_event_is_documented(package, title):
    """Each event that a service logs has a row in the table of that service, and the table has no other."""
    logs = section("Logs")
    table = logs[logs.index(f"\n### {title}\n") :].split("\n### ")[1]

    documented = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))

    assert events_of(package) == documented
    assert [] == [event for event in documented if not EVENT_NAME.fullmatch(event)]


def test_every_exit_code_is_documented():
    """The table names exactly the exit codes that the code names."""
    codes = {code for file in SOURCES for code in exit_codes(file)} | {0}

    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)}

    assert codes == documented


@pytest.mark.parametrize("file", MARKDOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_relative_links_lead_somewhere(file):
    """A link to a file or a heading of the project has its target."""
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (file.parent / path) if path else file
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text())):
            broken.append(target)

    assert [] == broken


@pytest.mark.parametrize("file", MARKDOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_documents_name_no_machine_s_paths(file):
    """A path of somebody's own machine means nothing to a reader."""
    assert [] == [found[0] for found in MACHINE_PATH.findall(file.read_text())]


@pytest.mark.parametrize("file", DECISIONS, ids=lambda file: file.stem)
def test_a_decision_has_its_four_parts(file):
    """Context, decision, price, and the sign of an error, in this order, on one screen."""
    text = file.read_text()

    assert DECISION_HEADINGS == re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert re.match(rf"# {file.stem[:4]}\. \S", text)
    assert len(text.splitlines()) <= 60


def test_decisions_are_numbered_without_a_gap():
    """0001, 0002, ..., each once."""
    assert DECISIONS
    assert list(range(1, len(DECISIONS) + 1)) == [int(file.name[:4]) for file in DECISIONS]
