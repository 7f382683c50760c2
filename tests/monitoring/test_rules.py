"""The recording rules and alerts, by promtool: valid, right, and each with a test that would notice a change."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus_server import GRAFANA, tool

ROOT = GRAFANA.parent
RULES = [rule for group in yaml.safe_load((GRAFANA / "rules.yml").read_text())["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}
GROUPS = yaml.safe_load((GRAFANA / "rules_test.yml").read_text())["tests"]
TESTED = [one for group in GROUPS for one in group["promql_expr_test"]]
RUNBOOK = re.compile(r"(docs/\w+\.md)#([\w-]+)")


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder, since it resolves rule files from there."""
    return subprocess.run(
        [tool("promtool", "prometheus"), *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool_is_content(arguments):
    """Configuration and rules are valid, and the rules say what their tests expect."""
    done = promtool(GRAFANA, *arguments)

    assert done.returncode == 0, done.stdout + done.stderr


def broken_rules(name: str, expression: str, folder: Path) -> Path:
    """Return a folder whose rules have another expression in one place, which waits for nothing, and its tests."""
    rules: dict[str, Any] = yaml.safe_load((GRAFANA / "rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if name in (rule.get("alert"), rule.get("record")):
                rule["expr"] = expression
                rule.pop("for", None)
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    tests: dict[str, Any] = yaml.safe_load((GRAFANA / "rules_test.yml").read_text())
    named = [group for group in GROUPS if any(name in one["expr"] for one in group["promql_expr_test"])]
    (folder / "rules_test.yml").write_text(yaml.safe_dump(tests | {"tests": named}))
    return folder


@pytest.mark.parametrize("expression", ["vector(1) > 2", "vector(1)"], ids=["never", "always"])
@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_that_never_or_always_fires_is_noticed(name, expression, tmp_path):
    """For each alert the rule tests hold a time at which it fires and one at which it does not."""
    done = promtool(broken_rules(name, expression, tmp_path), "test", "rules", "rules_test.yml")

    assert done.returncode != 0


@pytest.mark.parametrize("name", RECORDS)
def test_a_wrong_ratio_is_noticed(name, tmp_path):
    """For each recording rule the rule tests hold its value."""
    done = promtool(broken_rules(name, "vector(123456)", tmp_path), "test", "rules", "rules_test.yml")

    assert done.returncode != 0
    assert name in {found for one in TESTED for found in re.findall(r"hiddenstream:\w+", one["expr"])}


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_an_alert_says_what_to_do(rule):
    """Severity, summary, description, and a link to a section of its own."""
    annotations = rule["annotations"]
    file, anchor = RUNBOOK.fullmatch(annotations["runbook"]).groups()

    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description", "runbook"} == set(annotations)
    assert all(len(text) > 20 for text in annotations.values())
    assert ("docs/monitoring.md", rule["alert"].lower()) == (file, anchor)
    assert f"### {rule['alert']}\n" in (ROOT / file).read_text()


def test_the_document_has_no_other_alerts():
    """A section about an alert that is gone would mislead."""
    documented = re.findall(r"^### (Hiddenstream\w+)$", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE)

    assert sorted(ALERTS) == sorted(documented)
