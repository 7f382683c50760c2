"""Each worker and its GPUs: what it is at, how busy and how warm its GPUs are, whether its states can be trusted."""

from __future__ import annotations

from grafana.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Board, Panel, Section, one_of
from grafana.short import lines, stat
from hiddenstream.contracts.worker_report import WAYS, WORKER_STATES

CHOSEN = 'instance=~"$instance"'
STATE_COLORS = {
    "waiting_for_sink": ORANGE,
    "waiting_for_queue": ORANGE,
    "waiting_for_gpu": YELLOW,
    "loading": PURPLE,
    "working": GREEN,
    "idle": BLUE,
    "draining": BLUE,
    "complete": GREY,
    "refused": RED,
}
VERDICTS = ("not_run", "passed", "failed")
VERDICT_COLORS = (GREY, GREEN, RED)
WAY_COLORS = (GREEN, BLUE, YELLOW, ORANGE)


def _rate(counter: str) -> str:
    """Return a counter's rate by worker."""
    return f"sum by (instance) (rate(hiddenstream_worker_{counter}_total{{{CHOSEN}}}[$__rate_interval]))"


def _stage(stage: str) -> str:
    """Return the mean seconds of a shard in a stage, over all chosen workers."""
    name = "hiddenstream_worker_stage_seconds"
    total, shards = (
        f'sum(rate({name}_{part}{{stage="{stage}", {CHOSEN}}}[$__rate_interval]))' for part in ("sum", "count")
    )
    return f"{total} / {shards}"


_STATS = (
    stat(
        "Workers live",
        "hiddenstream:workers_live",
        "Workers that report. Start more with docker compose up --scale, or see HiddenstreamFewerWorkers.",
        base_color=RED,
        thresholds=[(1, GREEN)],
    ),
    stat(
        "GPUs claimed",
        f"sum(hiddenstream_worker_gpus_claimed{{{CHOSEN}}})",
        "GPUs that the chosen workers hold. 0 on CPUs; fewer than the host has: start more workers.",
        base_color=BLUE,
    ),
    stat(
        "GPU busy",
        "hiddenstream:gpu_busy_ratio",
        "Share of time in forward passes, all workers. Below 50 % with a full queue: see HiddenstreamGpuIdle.",
        unit="percentunit",
        base_color=RED,
        thresholds=[(0.5, YELLOW), (0.8, GREEN)],
    ),
    stat(
        "Out-of-memory splits",
        f"round(sum(increase(hiddenstream_worker_out_of_memory_splits_total{{{CHOSEN}}}[$__range])))",
        "Forward batches that had to be halved in the chosen time. Many: lower the worker's --token-budget.",
        thresholds=[(1, YELLOW), (100, RED)],
    ),
    stat(
        "Engine deaths",
        f"round(sum(increase(hiddenstream_worker_engine_deaths_total{{{CHOSEN}}}[$__range])))",
        "Engines that ended unasked in the chosen time; each was replaced. See HiddenstreamEngineDeaths.",
        thresholds=[(1, ORANGE), (5, RED)],
    ),
    stat(
        "Exactness gate failed",
        'sum(hiddenstream_worker_exactness_gate{verdict="failed"})',
        "Workers whose states differ from the reference; they store nothing. See HiddenstreamExactnessGateFailed.",
        thresholds=[(1, RED)],
    ),
)

_STATES = (
    Panel(
        kind="states",
        title="State of each worker",
        description="What each worker was at. Its message on the status page says why it waits or refuses.",
        queries={"{{instance}}": one_of("hiddenstream_worker_state", "state", WORKER_STATES, only=f", {CHOSEN}")},
        unit="none",
        width=16,
        height=7,
        meanings={place: (word, STATE_COLORS[word]) for place, word in enumerate(WORKER_STATES)},
    ),
    Panel(
        kind="states",
        title="Exactness gate",
        description="Whether a worker's states were compared with the reference at its start, and agreed. "
        "failed: it stores nothing; compare driver, torch and GPU with workers that pass.",
        queries={"{{instance}}": one_of("hiddenstream_worker_exactness_gate", "verdict", VERDICTS, only=f", {CHOSEN}")},
        unit="none",
        height=7,
        meanings=dict(enumerate(zip(VERDICTS, VERDICT_COLORS, strict=True))),
    ),
)

_BATCHING = (
    Panel(
        kind="states",
        title="Way of batching",
        description="How each worker batches samples, as its check at the start allowed; packed is the fastest. "
        "Its log says way_refused, with the reason, for each faster one.",
        queries={"{{instance}}": one_of("hiddenstream_worker_batching_way", "way", WAYS, only=f", {CHOSEN}")},
        unit="none",
        height=7,
        meanings=dict(enumerate(zip(WAYS, WAY_COLORS, strict=True))),
    ),
    lines(
        "Largest difference at the start, by test",
        {"{{instance}} {{test}}": f"hiddenstream_worker_exactness_difference{{{CHOSEN}}}"},
        "blocks: a block's output for a token, in this way and alone. swap: 0 where other batch mates change not one "
        "bit. reference: against what the run's first worker stored. All relative.",
        unit="short",
    ),
)

_BUSY = (
    lines(
        "GPU busy share by worker",
        {"{{instance}}": f'hiddenstream:worker_time_share{{activity="forward", {CHOSEN}}}'},
        "Share of an engine's time in forward passes. The overview's bottleneck says what fills the rest.",
        unit="percentunit",
        maximum=1,
        thresholds=[(0.5, YELLOW)],
    ),
    lines(
        "GPU utilisation",
        {"{{instance}} gpu {{gpu}}": f"hiddenstream_worker_gpu_utilization_ratio{{{CHOSEN}}}"},
        "Share of time with any kernel running, as the driver says. High beside a low busy share: another process.",
        unit="percentunit",
        maximum=1,
        no_value="no GPU",
    ),
    lines(
        "Real token slots by worker",
        {"{{instance}}": f"{_rate('computed_tokens')} / {_rate('token_slots')}"},
        "Computed slots that hold real tokens. Low on one worker: its --token-budget is lower than the others'.",
        unit="percentunit",
        maximum=1,
    ),
)

_GPUS = (
    lines(
        "GPU memory",
        {
            "{{instance}} gpu {{gpu}} used": f"hiddenstream_worker_gpu_memory_used_bytes{{{CHOSEN}}}",
            "{{instance}} gpu {{gpu}} total": f"hiddenstream_worker_gpu_memory_total_bytes{{{CHOSEN}}}",
        },
        "Memory of the whole GPU, other processes included. Much room: raise --token-budget.",
        unit="bytes",
        width=6,
        no_value="no GPU",
    ),
    lines(
        "Memory of the engine",
        {
            "{{instance}} allocated": f"hiddenstream_worker_gpu_memory_allocated_bytes{{{CHOSEN}}}",
            "{{instance}} reserved": f"hiddenstream_worker_gpu_memory_reserved_bytes{{{CHOSEN}}}",
        },
        "What torch has given out and what it holds. Reserved far above allocated is fragmentation; a restart ends it.",
        unit="bytes",
        width=6,
    ),
    lines(
        "Power",
        {"{{instance}} gpu {{gpu}}": f"hiddenstream_worker_gpu_power_watts{{{CHOSEN}}}"},
        "What each GPU draws. Far below its limit under load: it waits for memory or for the host.",
        unit="watt",
        width=6,
        no_value="no GPU",
    ),
    lines(
        "Temperature",
        {"{{instance}} gpu {{gpu}}": f"hiddenstream_worker_gpu_temperature_celsius{{{CHOSEN}}}"},
        "Above about 85 a GPU slows down: see to its cooling.",
        unit="celsius",
        width=6,
        thresholds=[(85, RED)],
        no_value="no GPU",
    ),
)

_SHARDS = (
    lines(
        "Time of a shard by stage",
        {stage: _stage(stage) for stage in ("forward", "copy", "check", "hash", "wait", "upload", "send", "answer")},
        "Mean over the chosen workers. Stages overlap, so forward alone should bound the speed; wait is for the sink, "
        "and upload is send plus answer.",
        unit="s",
        width=12,
    ),
    lines(
        "Size of the states by tap",
        {
            "tap {{tap}}": f"avg by (tap) (hiddenstream_worker_tap_rms{{{CHOSEN}}})",
            "tap {{tap}}, whole run": "max by (tap) (hiddenstream_producer_tap_rms)",
        },
        "Root mean square of the last shard's states, and of all. It is a property of the model: a jump, or a worker "
        "that differs, deserves hiddenstream verify --recompute.",
        unit="short",
        width=12,
    ),
    lines(
        "Largest magnitude by tap",
        {
            "tap {{tap}}": f"max by (tap) (hiddenstream_worker_tap_largest{{{CHOSEN}}})",
            "tap {{tap}}, whole run": "max by (tap) (hiddenstream_producer_tap_largest)",
        },
        "Of the last shard's states, and of all. float16 holds up to 65,504; samples beyond it are left out.",
        unit="short",
        width=12,
    ),
    lines(
        "Mean of the states by tap",
        {
            "tap {{tap}}": f"avg by (tap) (hiddenstream_worker_tap_mean{{{CHOSEN}}})",
            "tap {{tap}}, whole run": "max by (tap) (hiddenstream_producer_tap_mean)",
        },
        "Of the last shard's states, and of all.",
        unit="short",
        width=12,
        minimum=None,
    ),
    lines(
        "Values that overflowed",
        {"{{instance}}": f"hiddenstream_worker_overflowed_values_total{{{CHOSEN}}}"},
        "Values, in samples left out for it, that the stored dtype cannot hold. A few samples do no harm; many want "
        "--store-dtype bfloat16 or float32.",
        unit="short",
        width=12,
    ),
)

_LIFE = (
    lines(
        "Out-of-memory splits",
        {"{{instance}}": f"increase(hiddenstream_worker_out_of_memory_splits_total{{{CHOSEN}}}[$__rate_interval])"},
        "Batches halved for lack of memory. They cost time, no correctness. Lower --token-budget where they are many.",
        unit="short",
    ),
    lines(
        "Engines started and died",
        {
            "{{instance}} starts": f"hiddenstream_worker_engine_starts_total{{{CHOSEN}}}",
            "{{instance}} deaths": f"hiddenstream_worker_engine_deaths_total{{{CHOSEN}}}",
        },
        "One start is as it should be. Each death has an engine_died line in the log with its cause.",
        unit="short",
        decimals=0,
    ),
    lines(
        "Loading the model",
        {
            "{{instance}} load": f"hiddenstream_worker_model_load_seconds{{{CHOSEN}}}",
            "{{instance}} warm": f"hiddenstream_worker_model_warm_seconds{{{CHOSEN}}}",
        },
        "Seconds that the last engine took until its first job. Slow loads: put the weights on a local disk.",
        unit="s",
    ),
    Panel(
        kind="table",
        title="GPUs",
        description="Which GPU each worker holds; the uuid is the one that nvidia-smi -L shows.",
        queries={"gpus": f"hiddenstream_worker_gpu_info{{{CHOSEN}}}"},
        unit="none",
        width=24,
        height=6,
        hidden_columns=["Value", "job"],
        no_value="no GPU",
    ),
)

BOARD = Board(
    uid="hiddenstream-workers",
    title="hiddenstream: workers and GPUs",
    description="What each worker is at, how busy its GPUs are, and whether its states can be trusted.",
    has_instances=True,
    sections=(
        Section(title="", panels=_STATS),
        Section(title="States", panels=_STATES),
        Section(title="Batching", panels=_BATCHING),
        Section(title="How busy", panels=_BUSY),
        Section(title="GPUs", panels=_GPUS),
        Section(title="Shards", panels=_SHARDS),
        Section(title="Engines", panels=_LIFE),
    ),
)
