"""The queue, and what brought a run back on its feet: deliveries, restarts, duplicates, Redis."""

from __future__ import annotations

from grafana.panels import BLUE, GREEN, ORANGE, RED, YELLOW, Board, Panel, Section
from grafana.short import lines, stat

_STATS = (
    stat(
        "Shards waiting",
        "max(hiddenstream_producer_queue_depth_shards)",
        "On the queue. 0 with shards left: the producer is away, held back by the disk, or at the end of the plan.",
        base_color=BLUE,
    ),
    stat(
        "In work",
        "max(hiddenstream_producer_shards_in_work)",
        "In workers' hands, by their leases. About two for each worker; 0 with shards waiting: no worker takes them.",
        base_color=BLUE,
    ),
    stat(
        "Left",
        "hiddenstream:shards_left",
        "Shards not stored yet, stuck ones included.",
        base_color=BLUE,
    ),
    stat(
        "Redelivered",
        "max(hiddenstream_producer_redeliveries)",
        "Deliveries beyond the first, since this producer started. Each is a worker that died, stopped or failed.",
        thresholds=[(1, YELLOW), (100, RED)],
    ),
    stat(
        "Stuck",
        "max(hiddenstream_producer_shards_stuck)",
        "Shards given up on after --most-failures failures. See HiddenstreamStuckShards.",
        thresholds=[(1, RED)],
    ),
    Panel(
        kind="stat",
        title="Redis",
        description="Whether the producer reaches Redis. Away: start it again, empty or not.",
        queries={"redis": "max(hiddenstream_producer_is_redis_reachable)"},
        unit="none",
        width=4,
        height=4,
        base_color=RED,
        thresholds=[(1, GREEN)],
        meanings={0: ("away", RED), 1: ("reachable", GREEN)},
    ),
)

_QUEUE = (
    lines(
        "Shards waiting and in work",
        {
            "waiting": "max(hiddenstream_producer_queue_depth_shards)",
            "in work": "max(hiddenstream_producer_shards_in_work)",
        },
        "The producer keeps the queue at its high-water mark until the plan runs out. A sawtooth down to 0 starves "
        "workers: raise --queue-high-water-bytes.",
        unit="short",
        decimals=0,
    ),
    lines(
        "Oldest job",
        {"age": "max(hiddenstream_producer_oldest_job_age_seconds)"},
        "How long the next job has waited. It grows while no worker takes jobs.",
        unit="s",
    ),
    lines(
        "Bytes of jobs",
        {"waiting": "max(hiddenstream_producer_queue_depth_bytes)"},
        "What the waiting jobs take in Redis; --queue-high-water-bytes bounds it.",
        unit="bytes",
    ),
)

_RECOVERY = (
    lines(
        "Deliveries by outcome",
        {"{{outcome}}": "sum by (outcome) (increase(hiddenstream_worker_deliveries_total[$__rate_interval]))"},
        "How deliveries ended. committed should be nearly all; failed ones are delivered again, and their worker's "
        "log has the message.",
        unit="short",
    ),
    lines(
        "Redeliveries and duplicates",
        {
            "redelivered": "max(hiddenstream_producer_redeliveries)",
            "duplicates": "sum(hiddenstream_sink_shards_duplicate_total)",
        },
        "Both step up by a few when a worker dies. A steady climb is leases that are lost: look at Redis and at the "
        "workers' hosts.",
        unit="short",
        decimals=0,
    ),
    lines(
        "Stuck shards",
        {"stuck": "max(hiddenstream_producer_shards_stuck)"},
        "Shards that no delivery could finish. Remove the cause that shard_stuck names, then start the producer again.",
        unit="short",
        decimals=0,
        thresholds=[(1, RED)],
    ),
    lines(
        "Engine deaths",
        {"{{instance}}": "increase(hiddenstream_worker_engine_deaths_total[$__rate_interval])"},
        "Engines that ended unasked, by worker. Their shards are delivered again.",
        unit="short",
    ),
    lines(
        "Workers by state",
        {"{{state}}": "sum by (state) (hiddenstream_producer_workers) > 0"},
        "What the workers that report are at. refused needs you; waiting_for states say for what.",
        unit="short",
        decimals=0,
        is_stacked=True,
        no_value="no worker",
    ),
    lines(
        "Workers that answer, and restarts",
        {
            "answer scrapes": 'count(up{job="gpu_worker"} == 1)',
            "report to Redis": "max(hiddenstream_producer_workers_live)",
            "restarts at the same address": "sum(resets(hiddenstream_worker_batches_total[$__range]))",
        },
        "Both counts should agree. A replica that comes back under another address counts as a new one, not as a "
        "restart.",
        unit="short",
        decimals=0,
    ),
)

_REDIS = (
    lines(
        "Redis memory",
        {
            "used": "max(hiddenstream_producer_redis_memory_used_bytes)",
            "limit": "max(hiddenstream_producer_redis_memory_limit_bytes) > 0",
        },
        "What Redis uses and its maxmemory, where one is set. Near it: see HiddenstreamRedisMemory.",
        unit="bytes",
    ),
    lines(
        "Redis memory share",
        {"used": "hiddenstream:redis_memory_ratio"},
        "Used part of maxmemory. Empty where there is no limit; above 80 % raise it.",
        unit="percentunit",
        maximum=1,
        thresholds=[(0.8, ORANGE)],
        no_value="no limit set",
    ),
    Panel(
        kind="states",
        title="Redis reachable",
        description="Whether the producer reached Redis. After an absence it enqueues again what is missing.",
        queries={"redis": "max(hiddenstream_producer_is_redis_reachable)"},
        unit="none",
        meanings={0: ("away", RED), 1: ("reachable", GREEN)},
    ),
)

BOARD = Board(
    uid="hiddenstream-queue",
    title="hiddenstream: queue and recovery",
    description="What waits, what is in work, what had to be done again, and how Redis is.",
    sections=(
        Section(title="", panels=_STATS),
        Section(title="Queue", panels=_QUEUE),
        Section(title="Recovery", panels=_RECOVERY),
        Section(title="Redis", panels=_REDIS),
    ),
)
