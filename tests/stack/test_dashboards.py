"""The dashboards: generated, complete, laid out without overlap, and of Grafana's own types."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from grafana.build import json_of
from grafana.generate import BOARDS, FOLDER, main
from grafana.panels import DATASOURCE_UID, TAG
from grafana.queries import panels_of, queries_of
from tests.monitoring.test_rules import ALERTS
from tests.stack.dashboard_queries import RIGHTLY_EMPTY, dashboards

DASHBOARDS = dashboards()
PANELS = [(board["uid"], panel) for board in DASHBOARDS for panel in panels_of(board) if panel["type"] != "row"]
PROVISIONING = FOLDER.parent / "provisioning"
# In JSON a member of an enumeration is its text.
PLAIN_TYPES = """import type { Dashboard } from '@grafana/schema';
type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
FIRST_ROW = ["Done", "Samples per second", "Tokens per second", "Time left", "Stored", "Failures", "Workers live"]


def test_checked_in_is_what_is_generated():
    """Somebody who edits JSON by hand, or Python without generating, fails here."""
    assert 0 == main(["--check"]), "run: python -m grafana.generate"
    assert {f"{board.uid}.json" for board in BOARDS} == {file.name for file in FOLDER.iterdir()}


def test_generating_twice_gives_the_same_bytes():
    """Otherwise the check above would fail at random."""
    assert [json_of(board) for board in BOARDS] == [json_of(board) for board in BOARDS]


@pytest.mark.parametrize(
    ("board", "panel"), PANELS, ids=lambda value: value if isinstance(value, str) else value["title"]
)
def test_a_panel_explains_itself(board, panel):
    """Title, description, unit, thresholds, a word for no data, and a legend where there are several series."""
    defaults = panel["fieldConfig"]["defaults"]

    assert panel["title"]
    assert len(panel["description"]) > 30
    assert panel["description"].endswith(".")
    assert defaults["unit"]
    assert defaults["noValue"]
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert {"special"} <= {mapping["type"] for mapping in defaults["mappings"]}
    assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board["uid"])
def test_panels_do_not_overlap(board):
    """Each cell of the grid holds at most one panel, inside its 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board["uid"])
def test_panels_have_ids_and_titles_of_their_own(board):
    """Grafana links to panels by id, and people name them by title; within a row no title comes twice."""
    ids = [panel["id"] for panel in panels_of(board)]

    assert len(ids) == len(set(ids))
    assert all(number > 0 for number in ids)


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board["uid"])
def test_dashboards_lead_to_one_another(board):
    """All carry the tag that the menu of each asks for, and choose the data source by a variable."""
    (link,) = board["links"]

    assert TAG in board["tags"]
    assert [TAG] == link["tags"]
    assert "datasource" in {variable["name"] for variable in board["templating"]["list"]}
    assert {"${datasource}"} == {panel["datasource"]["uid"] for panel in panels_of(board) if panel["type"] != "row"}


def test_the_overview_begins_with_what_one_asks_first():
    """Seven tiles in the first row, and nothing beside them."""
    (overview,) = [board for board in DASHBOARDS if board["uid"] == "hiddenstream-overview"]

    first = [panel for panel in overview["panels"] if panel["gridPos"]["y"] == 0]

    assert FIRST_ROW == [panel["title"] for panel in first]
    assert {"stat"} == {panel["type"] for panel in first}


def test_a_rate_is_over_the_interval_that_grafana_chooses():
    """A fixed window would be wrong at another zoom or scrape interval."""
    fixed = [
        query.written
        for board in DASHBOARDS
        for query in queries_of(board)
        if re.search(r"(rate|increase)\([^[]*\[\d", query.written)
    ]

    assert [] == fixed


def test_descriptions_name_alerts_that_exist():
    """A description that sends one to an alert sends one to a section of docs/monitoring.md."""
    named = {name for _, panel in PANELS for name in re.findall(r"Hiddenstream[A-Z]\w+", panel["description"])}

    assert named
    assert set() == named - set(ALERTS)


def test_panels_that_may_be_empty_exist():
    """The list of rightly empty panels names no panel that is gone."""
    titles = {panel["title"] for _, panel in PANELS}

    assert set() == set(RIGHTLY_EMPTY) - titles


def test_provisioning_fits_the_dashboards():
    """The data source has the fixed uid, and the provider reads a folder and forbids edits that would be lost."""
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "hiddenstream.yml").read_text())["providers"]

    assert (DATASOURCE_UID, "prometheus", "http://prometheus:9090") == (source["uid"], source["type"], source["url"])
    assert "hiddenstream" == provider["folder"]
    assert provider["allowUiUpdates"] is False


@pytest.fixture(scope="module")
def grafana_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's published types and a TypeScript compiler."""
    npm = shutil.which("npm")
    folder: Path = tmp_path_factory.mktemp("types")
    done = npm and subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "@grafana/schema@11.6.0", "typescript@5"],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if not done or done.returncode:
        missing = f"npm cannot install Grafana's types: {done.stderr[-500:] if done else 'npm is not on PATH'}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return folder


def complaints(folder: Path, boards: dict[str, dict]) -> str:
    """Return what the compiler says of dashboards as literals of Grafana's type; nothing if all is well."""
    for name, board in boards.items():
        # Grafana's builders write keys of variables that Grafana's types do not know.
        literal = json.dumps({key: value for key, value in board.items() if key != "templating"})
        (folder / f"{name}.ts").write_text(f"{PLAIN_TYPES}export const board: Plain<Dashboard> = {literal};\n")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]
    options += ["--target", "es2022"]
    files = [f"{name}.ts" for name in boards]
    done = subprocess.run(
        [f"{folder}/node_modules/.bin/tsc", *options, *files], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def test_grafana_s_types_accept_the_dashboards(grafana_types):
    """Each dashboard is a value of the type Dashboard that Grafana 11.6 publishes."""
    assert "" == complaints(grafana_types, {board["uid"]: board for board in DASHBOARDS})


def test_grafana_s_types_would_refuse_a_misspelt_key(grafana_types):
    """The check above can fail."""
    board = json.loads(json.dumps(DASHBOARDS[0]))
    board["panels"][0]["gridPosition"] = board["panels"][0].pop("gridPos")

    assert "gridPosition" in complaints(grafana_types, {"misspelt": board})
