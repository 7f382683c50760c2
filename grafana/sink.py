"""What is written: how fast, how long each step takes, who is refused, and how long the disk lasts."""

from __future__ import annotations

from grafana.panels import BLUE, GREEN, ORANGE, RED, Board, Panel, Section
from grafana.short import lines, stat

_DISK_SECONDS = "hiddenstream:disk_usable_bytes / (-deriv(hiddenstream:disk_usable_bytes[30m]) > 0)"


def _quantiles(step: str) -> dict[str, str]:
    """Return three quantiles of a step's seconds."""
    buckets = f"sum by (le) (rate(hiddenstream_sink_{step}_seconds_bucket[$__rate_interval]))"
    return {f"{share:.0%}": f"histogram_quantile({share}, {buckets})" for share in (0.5, 0.95, 0.99)}


def _heatmap(step: str, description: str) -> Panel:
    return Panel(
        kind="heatmap",
        title=f"{step} by shard".capitalize(),
        description=description,
        queries={"{{le}}": f"sum by (le) (increase(hiddenstream_sink_{step}_seconds_bucket[$__rate_interval]))"},
        unit="s",
    )


_STATS = (
    stat(
        "Write rate",
        "hiddenstream:bytes_per_second",
        "Bytes of shard files committed a second, over two minutes. Compare with what the disk can do.",
        unit="Bps",
        decimals=2,
        base_color=BLUE,
    ),
    stat(
        "Usable disk",
        "hiddenstream:disk_usable_bytes",
        "Free space less the reserve. At 0 the sink answers disk_full and everything waits; free some space.",
        unit="bytes",
        decimals=2,
        base_color=RED,
        thresholds=[(10 * 1024**3, ORANGE), (100 * 1024**3, GREEN)],
    ),
    stat(
        "Free when done",
        "hiddenstream:disk_usable_bytes - hiddenstream:bytes_left",
        "Usable disk less what is still to come. Below 0 the run does not fit: see HiddenstreamDiskTooSmall.",
        unit="bytes",
        decimals=2,
        base_color=RED,
        thresholds=[(0, GREEN)],
    ),
    stat(
        "Disk full in",
        _DISK_SECONDS,
        "At the speed of the last 30 minutes. Less than the time left of the run: free some space now.",
        unit="s",
        base_color=BLUE,
        no_value="not filling",
    ),
    stat(
        "Refusals",
        "round(sum(increase(hiddenstream_sink_refusals_total[$__range])))",
        "Requests refused in the chosen time. A few not_ready at the start are as they should be.",
        thresholds=[(100, ORANGE)],
    ),
    stat(
        "Duplicates",
        "round(sum(increase(hiddenstream_sink_shards_duplicate_total[$__range])))",
        "Uploads of shards that were stored already. Harmless; each cost a worker one shard's time.",
        thresholds=[(1, ORANGE)],
    ),
)

_WRITING = (
    lines(
        "Write rate",
        {"{{instance}}": "sum by (instance) (rate(hiddenstream_sink_bytes_written_total[$__rate_interval]))"},
        "Bytes of committed shard files, by sink. A ceiling here beside waiting workers is the disk's or network's.",
        unit="Bps",
        width=12,
    ),
    lines(
        "Uploads and connections",
        {
            "uploads in flight": "sum(hiddenstream_sink_uploads_in_flight)",
            "connections": "sum(hiddenstream_sink_connections)",
        },
        "Shards that are arriving now, and open connections. At --max-connections others wait: raise it.",
        unit="short",
        width=12,
    ),
)

_STEPS = (
    lines(
        "Receiving a shard",
        _quantiles("receive"),
        "From the first byte to the last, checks included. Long: network or worker; compare with the upload stage.",
        unit="s",
    ),
    lines(
        "Making a shard durable",
        _quantiles("fsync"),
        "fsync of one file. Seconds mean that the disk is behind: a faster one, or fewer workers.",
        unit="s",
    ),
    lines(
        "Committing a shard",
        _quantiles("commit"),
        "Its name and its ledger line, each made durable. Long times come from a disk busy with fsync.",
        unit="s",
    ),
    _heatmap("receive", "How long each shard took to arrive. Two bands are two kinds of workers or networks."),
    _heatmap("fsync", "How long each file took to become durable. A band that climbs is a disk whose cache is full."),
    _heatmap("commit", "How long each commit took. Outliers are other load on the disk."),
)

_WRONG = (
    lines(
        "Refusals by reason",
        {"{{reason}}": "sum by (reason) (increase(hiddenstream_sink_refusals_total[$__rate_interval])) > 0"},
        "Who was refused and why; docs/operations.md has what to do about each reason.",
        unit="short",
        no_value="none",
    ),
    lines(
        "Duplicates, aborted and recovered uploads",
        {
            "duplicates": "sum(hiddenstream_sink_shards_duplicate_total)",
            "aborted": "sum(hiddenstream_sink_uploads_aborted_total)",
            "recovered": "sum(hiddenstream_sink_shards_recovered_total)",
        },
        "Stored already, broken off by the client, found at start in no ledger. Each is handled; many need a look "
        "at network and workers.",
        unit="short",
        decimals=0,
    ),
    lines(
        "Quarantined in stored shards",
        {"samples": "max(hiddenstream_sink_run_samples_quarantined)"},
        "Planned samples that stored shards leave out; the overview splits them by reason.",
        unit="short",
        decimals=0,
    ),
)

_DISK = (
    lines(
        "Disk",
        {
            "free, {{instance}}": "hiddenstream_sink_disk_free_bytes",
            "total, {{instance}}": "hiddenstream_sink_disk_total_bytes",
            "reserve, {{instance}}": "hiddenstream_sink_disk_reserve_bytes",
        },
        "The run directory's disk as each sink sees it. Below the reserve nothing is taken any more.",
        unit="bytes",
        width=12,
    ),
    lines(
        "Usable space and what it will be",
        {
            "usable": "hiddenstream:disk_usable_bytes",
            "in one hour": "predict_linear(hiddenstream:disk_usable_bytes[30m], 3600)",
            "in four hours": "predict_linear(hiddenstream:disk_usable_bytes[30m], 4 * 3600)",
            "still to come": "hiddenstream:bytes_left",
        },
        "A straight line through the last 30 minutes. Below 0: full by then, see HiddenstreamDiskFullSoon.",
        unit="bytes",
        width=12,
        minimum=None,
        thresholds=[(0, RED)],
    ),
)

BOARD = Board(
    uid="hiddenstream-sink",
    title="hiddenstream: sink and disk",
    description="How fast shards are written, how long each step takes, and how long the disk lasts.",
    sections=(
        Section(title="", panels=_STATS),
        Section(title="Writing", panels=_WRITING),
        Section(title="Steps of storing a shard", panels=_STEPS),
        Section(title="What went wrong", panels=_WRONG),
        Section(title="Disk", panels=_DISK),
    ),
)
