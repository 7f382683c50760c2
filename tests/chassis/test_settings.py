"""Settings: where a value comes from, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hiddenstream.chassis.settings import (
    address,
    describe,
    is_on,
    one_of,
    read_settings,
    refuse_unknown_environment,
    seconds,
    secret,
    setting,
    whole_number,
)
from hiddenstream.contracts.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Do an example."""

    run_dir: Path = setting(means="the run directory", parse=Path, is_argument=True)
    token_budget: int = setting(64, means="token slots of a batch, a count", parse=whole_number(least=1))
    data: tuple[str, ...] = setting((), means="input files, 100% of them", is_repeated=True)
    is_strict: bool = setting(False, means="stop at the first bad row", parse=is_on)


def read(arguments, environment=None):
    return read_settings(Example, arguments, environment or {}, command="example")


def test_a_flag_wins_over_the_environment():
    """Flag, then environment, then default."""
    environment = {"HIDDENSTREAM_TOKEN_BUDGET": "7"}

    budgets = [
        read(["d", "--token-budget", "9"], environment).token_budget,
        read(["d"], environment).token_budget,
        read(["d"]).token_budget,
    ]

    assert budgets == [9, 7, 64]


def test_a_repeated_flag_collects_its_values():
    """Given several times, or separated by commas in the environment."""
    assert read(["d", "--data", "a", "--data", "b,c"]).data == ("a", "b,c")
    assert read(["d"], {"HIDDENSTREAM_DATA": "a,b"}).data == ("a", "b")
    assert read(["d"]).data == ()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["d"], False),
        (["d", "--is-strict"], True),
        (["--is-strict", "d"], True),
        (["d", "--is-strict", "no"], False),
        (["--is-strict", "yes", "d"], True),
        (["d", "--is-strict=off"], False),
        (["--is-strict", "--token-budget", "3", "d"], True),
    ],
)
def test_a_switch_never_takes_the_argument_after_it(arguments, expected):
    """A bare switch means yes wherever it stands."""
    settings = read(arguments)

    assert (settings.is_strict, settings.run_dir) == (expected, Path("d"))


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        ([], {}, "RUN_DIR is required"),
        (["d", "--tokens", "3"], {}, "--tokens"),
        (["d", "--token", "3"], {}, "--token"),
        (["d", "--token-budget"], {}, "--token-budget"),
        (["d", "e"], {}, "unrecognized arguments: e"),
        (["d", "--token-budget", "many"], {}, "--token-budget: 'many' will not do: give a whole number"),
        (["d"], {"HIDDENSTREAM_TOKEN_BUDGET": "0"}, "HIDDENSTREAM_TOKEN_BUDGET: '0' will not do: .* at least 1"),
        (["d"], {"HIDDENSTREAM_IS_STRICT": "maybe"}, "HIDDENSTREAM_IS_STRICT: 'maybe' .* yes or no"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(arguments, environment, named):
    """The error names the flag or the variable that the value came from."""
    with pytest.raises(UsageError, match=named):
        read(arguments, environment)


def test_a_required_setting_can_come_from_the_environment():
    """Containers give no arguments."""
    assert read([], {"HIDDENSTREAM_RUN_DIR": "d"}).run_dir == Path("d")


def test_an_empty_variable_is_one_that_was_left_out():
    """Compose files pass on what may be unset; a flag that is given empty is still refused."""
    assert read(["d"], {"HIDDENSTREAM_TOKEN_BUDGET": ""}).token_budget == read(["d"]).token_budget

    with pytest.raises(UsageError, match="--token-budget"):
        read(["d", "--token-budget", ""])


def test_unknown_environment_variables_are_refused_all_at_once():
    """A misspelt variable never does nothing in silence; others' variables are none of our business."""
    environment = {"HIDDENSTREAM_TOKEN_BUDGE": "1", "HIDDENSTREAM_X": "", "HIDDENSTREAM_DATA": "", "HOME": "/"}

    with pytest.raises(UsageError, match="HIDDENSTREAM_TOKEN_BUDGE, HIDDENSTREAM_X;"):
        refuse_unknown_environment(environment, [Example])


def test_help_tells_meaning_unit_and_default(capsys):
    """--help shows every setting, and ends the command without an error."""
    with pytest.raises(SystemExit) as ended:
        read(["--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "token slots of a batch, a count (default: 64)" in text
    assert "input files, 100% of them" in text


def test_settings_describe_themselves_for_documents():
    """The documents' table is made from the same declarations."""
    assert [line[:2] for line in describe(Example)] == [
        ("RUN_DIR", "required"),
        ("--token-budget", "64"),
        ("--data", "()"),
        ("--is-strict", "False"),
    ]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (whole_number(least=0), "2K", 2048),
        (whole_number(least=0), " 3g ", 3 * 1024**3),
        (seconds, "0.5", 0.5),
        (address, "[::1]:80", ("::1", 80)),
        (one_of("a", "b"), "b", "b"),
    ],
)
def test_parsers_take_what_people_write(parse, text, value):
    """Units, brackets and white space."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (whole_number(least=1, most=3), "4"),
        (whole_number(least=0), "-1"),
        (whole_number(least=0), ""),
        (whole_number(least=0), "K"),
        (whole_number(least=0), "9" * 5000),
        (seconds, "nan"),
        (seconds, "inf"),
        (seconds, "0"),
        (seconds, "soon"),
        (address, "host"),
        (address, ":80"),
        (address, "host:65536"),
        (address, "host:²"),
        (one_of("a"), "b"),
        (is_on, "perhaps"),
    ],
)
def test_parsers_refuse_the_rest(parse, text):
    """A value that is out of range or not understood is a ValueError that says what to give."""
    with pytest.raises(ValueError, match=r"give|choose|say"):
        parse(text)


def test_a_secret_comes_from_text_or_file(tmp_path):
    """A file wins and loses its white space; an empty or missing one is refused."""
    file, empty = tmp_path / "token", tmp_path / "empty"
    file.write_text(" abc\n")
    empty.write_text("\n")

    assert [secret("x", None), secret("x", file), secret(None, None)] == ["x", "abc", None]
    for bad in (empty, tmp_path / "none"):
        with pytest.raises(UsageError, match="token file"):
            secret(None, bad)
