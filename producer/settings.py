"""Settings that say what a run is. ``plan``, ``produce`` and ``run`` share them.

None, or an empty tuple, means "not given": a new run then takes the default that is described, and an existing run
keeps what it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hiddenstream.chassis.settings import address, is_on, one_of, setting, short_name, whole_number
from hiddenstream.contracts.run import DTYPES
from hiddenstream.contracts.taps import PRESETS

DEFAULT_LAYERS = "dflash:5"
DEFAULT_DTYPE = "bfloat16"
DEFAULT_OVER_LONG = "reject"
DEFAULT_TOKEN_BUDGET = 12_288
DEFAULT_SHARD_BYTES = 1024**3


def host_name(text: str) -> str:
    """Parse the name of a host, without a port."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", text.strip()):
        raise ValueError("give one host name, without a port, for example storage.example")
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """Plan a run: read the data once, and write which sample goes into which shard."""

    run_directory: Path = setting(
        means="folder of the run; made if need be, refused if it holds another run", parse=Path, is_argument=True
    )
    model: str | None = setting(None, means="folder or hub id of the model; required for a new run")
    revision: str | None = setting(None, means="branch, tag or commit of a hub model; newest unless given")
    data: tuple[Path, ...] = setting(
        (),
        means="JSON Lines or Parquet file, saved dataset, or folder of files; repeatable; required for a new run",
        parse=Path,
        is_repeated=True,
    )
    layers: str | None = setting(
        None, means=f"blocks whose outputs to keep: numbers from 0, or {PRESETS}; {DEFAULT_LAYERS} unless given"
    )
    final: bool | None = setting(
        None,
        means="keep the last block's output too, and the final norm, so that logits can be computed; no unless given",
        parse=is_on,
    )
    heads: bool | None = setting(
        None, means="store the model's embedding and lm_head once, beside the states; no unless given", parse=is_on
    )
    dtype: str | None = setting(
        None,
        means=f"dtype that the model runs in: {', '.join(DTYPES)}; {DEFAULT_DTYPE} unless given",
        parse=one_of(*DTYPES),
    )
    store_dtype: str | None = setting(
        None, means="dtype that states are stored in; that of --dtype unless given", parse=one_of(*DTYPES)
    )
    max_length: int | None = setting(
        None,
        means="tokens a sample may have; what model and token budget allow unless given",
        parse=whole_number(least=1),
    )
    over_long: str | None = setting(
        None,
        means=f"what to do with longer samples: reject or truncate; {DEFAULT_OVER_LONG} unless given",
        parse=one_of("reject", "truncate"),
    )
    token_budget: int | None = setting(
        None,
        means=f"token slots of one forward batch, padding included; more fills a GPU better and takes more of its"
        f" memory; {DEFAULT_TOKEN_BUDGET} unless given",
        parse=whole_number(least=1, most=2**20),
    )
    shard_bytes: int | None = setting(
        None,
        means="bytes of states in one shard at most (K, M, G allowed); 1G unless given",
        parse=whole_number(least=1),
    )
    strict: bool | None = setting(
        None, means="stop at the first row that cannot be used instead of counting it; no unless given", parse=is_on
    )
    run_name: str | None = setting(
        None, means="name of the run on queue and wire; the folder's name unless given", parse=short_name
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFlags(PlanFlags):
    """Plan a run and show it. ``produce`` and ``run`` share them."""

    status_listen: tuple[str, int] | None = setting(
        None,
        parse=address,
        means="HOST:PORT of the status page, which shows ids and log lines to whoever reaches it; 127.0.0.1:8080 unless"
        " given, or a free port where that one is taken",
    )
    status_hosts: tuple[str, ...] = setting(
        (),
        parse=host_name,
        is_repeated=True,
        means="host names under which the status page may be asked for, besides addresses, localhost and this machine's"
        " name; others are refused, or a foreign site could read the page through a browser",
    )
