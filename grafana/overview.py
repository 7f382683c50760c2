"""The run at a glance: is it moving, when is it done, what holds it back, what went wrong."""

from __future__ import annotations

from grafana.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Board, Panel, Section, one_of
from grafana.short import stat
from hiddenstream.contracts.worker_report import BOTTLENECKS

BOTTLENECK_COLORS = {
    "gpu": GREEN,
    "copy": PURPLE,
    "host": PURPLE,
    "upload": ORANGE,
    "sink": RED,
    "queue": BLUE,
    "none": GREY,
}

# Each part has a word for nobody who tells of it: a sum of which one part is empty would be empty.
_FAILURES = " + ".join(
    f"({part} or vector(0))"
    for part in (
        'round(sum(increase(hiddenstream_worker_deliveries_total{outcome="failed"}[$__range])))',
        "round(sum(increase(hiddenstream_worker_engine_deaths_total[$__range])))",
        "sum(max by (reason) (last_over_time(hiddenstream_producer_samples_quarantined[$__range])))",
        # A producer that gave up on stuck shards has ended; one that was started again knows better.
        "max(hiddenstream_producer_shards_stuck) or max(last_over_time(hiddenstream_producer_shards_stuck[$__range]))",
    )
)

_STATS = (
    stat(
        "Done",
        "hiddenstream:done_ratio",
        "Share of the run's shards that are durably stored. It never falls; 100 % means complete.",
        unit="percentunit",
        decimals=1,
        minimum=0,
        maximum=1,
        base_color=BLUE,
        thresholds=[(1, GREEN)],
        no_value="not planned yet",
    ),
    stat(
        "Samples per second",
        "hiddenstream:samples_per_second",
        "Samples stored over the last two minutes. 0 with work left: see the alert HiddenstreamNoProgress.",
        unit="short",
        decimals=1,
        base_color=RED,
        thresholds=[(0.001, GREEN)],
    ),
    stat(
        "Tokens per second",
        "hiddenstream:tokens_per_second",
        "Tokens whose states were stored, over the last two minutes, all workers together. "
        "When it falls, the panels under 'What holds it back' say why.",
        unit="short",
        decimals=1,
        base_color=RED,
        thresholds=[(0.001, GREEN)],
    ),
    stat(
        "Time left",
        "hiddenstream:eta_seconds",
        "What is left of the plan, at the mean speed of the last ten minutes. Empty while nothing is stored.",
        unit="s",
        width=3,
        base_color=BLUE,
        no_value="unknown",
    ),
    stat(
        "Stored",
        "max(hiddenstream_producer_shard_bytes_committed)",
        "Bytes of shard files that the ledger names. How much is still to come: dashboard 'sink and disk'.",
        unit="bytes",
        decimals=2,
        width=3,
        base_color=BLUE,
    ),
    stat(
        "Failures",
        _FAILURES,
        "Deliveries that failed and engines that died in the chosen time, samples in quarantine, and stuck shards. The "
        "first two mend themselves; the panels below and the status page say which it was. Services that are gone "
        "count with what they said last.",
        width=3,
        thresholds=[(1, ORANGE), (10, RED)],
    ),
    stat(
        "Workers live",
        "hiddenstream:workers_live",
        "Workers that report through Redis. Fewer than you started: see the alert HiddenstreamFewerWorkers.",
        width=3,
        base_color=RED,
        thresholds=[(1, GREEN)],
    ),
)

_PROGRESS = (
    Panel(
        kind="lines",
        title="Tokens stored against the plan",
        description="Stored tokens climb to the plan's line. A flat piece is a time without progress; tokens of "
        "quarantined samples are never stored.",
        queries={
            "stored": "max(hiddenstream_producer_tokens_committed)",
            "planned": "max(hiddenstream_producer_tokens_planned)",
        },
        unit="short",
        width=12,
        minimum=0,
    ),
    Panel(
        kind="lines",
        title="Tokens per second by worker",
        description="Tokens of committed shards, stacked. Workers on equal GPUs should be equally fast; look at a "
        "slower one in 'workers and GPUs'.",
        queries={"{{instance}}": "hiddenstream:worker_tokens_per_second"},
        unit="short",
        width=12,
        minimum=0,
        is_stacked=True,
    ),
)

_LIMITS = (
    Panel(
        kind="states",
        title="Bottleneck of each worker",
        description="What held a worker back over the last minute. gpu is as it should be; sink: disk or network; "
        "queue: the producer or Redis; copy and host: the worker's own machine.",
        queries={"{{instance}}": one_of("hiddenstream_worker_bottleneck", "resource", BOTTLENECKS)},
        unit="none",
        meanings={place: (word, BOTTLENECK_COLORS[word]) for place, word in enumerate(BOTTLENECKS)},
    ),
    Panel(
        kind="lines",
        title="Shares of the workers' time",
        description="Where the engines' main threads spend their time, all workers together. forward should fill it; "
        "wait_for_buffer and wait_for_sink mean a slow sink, wait_for_job an empty queue.",
        queries={"{{activity}}": "hiddenstream:time_share"},
        unit="percentunit",
        minimum=0,
        maximum=1,
        is_stacked=True,
    ),
    Panel(
        kind="lines",
        title="Real token slots",
        description="Computed token slots that held real tokens, not padding. Below 0.8: raise --token-budget, so that "
        "samples of like length meet in a batch.",
        queries={"real slots": "hiddenstream:real_slots_ratio"},
        unit="percentunit",
        minimum=0,
        maximum=1,
        thresholds=[(0.8, YELLOW)],
    ),
)

_WRONG = (
    Panel(
        kind="table",
        title="Alerts that fire",
        description="Each has a section in docs/monitoring.md that says what to do.",
        queries={"alerts": 'ALERTS{alertstate="firing", alertname=~"Hiddenstream.*"}'},
        unit="none",
        width=12,
        height=7,
        hidden_columns=["Value", "alertstate"],
        no_value="no alert",
    ),
    Panel(
        kind="lines",
        title="Quarantined samples by reason",
        description="Planned samples left out, since the run began. The ledger names each with its evidence; "
        "docs/operations.md says what to do about each reason.",
        queries={"{{reason}}": "sum by (reason) (hiddenstream_producer_samples_quarantined)"},
        unit="short",
        decimals=0,
        width=6,
        height=7,
        minimum=0,
        thresholds=[(1, ORANGE)],
        no_value="none",
    ),
    Panel(
        kind="lines",
        title="Rejected rows by reason",
        description="Input rows that planning could not use. samples.parquet in the plan names each; correct the data, "
        "or leave them out.",
        queries={"{{reason}}": "sum by (reason) (hiddenstream_producer_rows_rejected)"},
        unit="short",
        decimals=0,
        width=6,
        height=7,
        minimum=0,
        no_value="none",
    ),
)

_RUN = (
    Panel(
        kind="table",
        title="This run",
        description="What is computed, and by which fingerprint a worker recognises it. It is fixed once planned.",
        queries={"run": "hiddenstream_producer_run_info"},
        unit="none",
        width=16,
        height=5,
        hidden_columns=["Value", "instance", "job"],
        no_value="not planned yet",
    ),
    Panel(
        kind="table",
        title="Versions",
        description="What each service runs. Versions should be the same everywhere; restart the one that lags.",
        queries={
            "versions": "hiddenstream_producer_build_info or hiddenstream_worker_build_info "
            "or hiddenstream_sink_build_info"
        },
        unit="none",
        width=8,
        height=5,
        hidden_columns=["Value"],
    ),
)

BOARD = Board(
    uid="hiddenstream-overview",
    title="hiddenstream: run overview",
    description="Is the run moving, when is it done, what holds it back, what went wrong.",
    sections=(
        Section(title="", panels=_STATS),
        Section(title="Progress", panels=_PROGRESS),
        Section(title="What holds it back", panels=_LIMITS),
        Section(title="What went wrong", panels=_WRONG),
        Section(title="The run", panels=_RUN),
    ),
)
