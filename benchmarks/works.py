"""What is measured: every work, by group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

KIB, MIB = 1024, 1024 * 1024
QUICK_DIVISOR = 20
BATCH = 32
STATE_BYTES = 512 * MIB


@dataclass(frozen=True)
class Work:
    """A task of all engines that know its function; who does not is left out of its table."""

    name: str
    title: str
    function: str
    num_objects: int
    size: int
    in_flight: int = 1
    server: str = "plain"  # or tls, latency, seaweedfs, files
    scheme: str = "s3"
    cold: bool = False  # the first run of the process is timed: connected, but with no memory to use again
    drop: bool = False  # files are not in the page cache
    first: int = 1  # measure the time to the first of so many objects
    workers: int = 0
    context: str = "fork"
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_large(self) -> bool:
        """Rates in MiB, costs per GiB."""
        return self.size >= MIB

    @property
    def kind(self) -> str:
        """What an engine must be able to read."""
        return "files" if self.server == "files" else "s3"

    @property
    def imports(self) -> tuple[str, ...]:
        """What a client has imported before its time counts."""
        return ("torch",) if self.function in ("loader", "loader_map", "save", "load") else ()

    @property
    def own_mib(self) -> float:
        """Memory that the result itself takes and that every engine needs."""
        return self.size / MIB if self.function == "load" else 0.0

    def quick(self) -> Work:
        """The same with little data, to see whether it works."""
        title = f"{self.title} (quick)"
        if self.function in ("save", "load"):
            return replace(self, title=title, size=32 * MIB)
        if self.is_large:
            return replace(self, title=title, num_objects=min(2, self.num_objects), size=40 * MIB)
        return replace(self, title=title, num_objects=self.num_objects // QUICK_DIVISOR)


WHOLE = {"S3DLIO_ENABLE_RANGE_OPTIMIZATION": "0"}
COLD = {"cold": True, "first": 0}
FORKED = {"workers": 2, "context": "fork", "first": BATCH}
SPAWNED = {**FORKED, "context": "spawn"}
SMALL, MEDIUM, LARGE = 4 * KIB, 128 * KIB, 148 * MIB


def _files(scheme: str, num_small: int = 5000) -> list[Work]:
    works = []
    for state, drop in (("warm", False), ("cold", True)):
        options = {"server": "files", "scheme": scheme, "drop": drop}
        rest = f"{scheme}://, {state}"
        name = f"{scheme}-{{}}-{state}"
        works += [
            Work(name.format("loop"), f"5,000 x 128 KiB one by one, {rest}", "get", num_small, MEDIUM, **options),
            Work(name.format("many"), f"5,000 x 128 KiB at once, {rest}", "get_many", num_small, MEDIUM, 16, **options),
            Work(name.format("large"), f"4 x 148 MiB one by one, {rest}", "get", 4, LARGE, **options),
            Work(name.format("load"), f"torch.load of 512 MiB, {rest}", "load", 1, STATE_BYTES, **options),
        ]
    return works


GROUPS: dict[str, list[Work]] = {
    "small": [
        Work("small-16", "10,000 x 4 KiB, 16 in flight", "get_many", 10_000, SMALL, 16),
        Work("small-64", "10,000 x 4 KiB, 64 in flight", "get_many", 10_000, SMALL, 64),
    ],
    "medium": [Work("medium", "4,000 x 128 KiB, 32 in flight", "get_many", 4000, MEDIUM, 32)],
    "single": [
        Work("single-loop", "4,000 x 4 KiB, one get after the other", "get", 4000, SMALL),
        Work("single-threads", "4,000 x 4 KiB, one get each from 16 threads", "get_threads", 4000, SMALL, 16),
    ],
    "large": [
        Work("large", "8 x 148 MiB, each whole, dropped in between", "get", 8, LARGE, environment=WHOLE),
        Work("large-ranges", "8 x 148 MiB, each in ranges, dropped in between", "get_ranges", 8, LARGE, 16),
        Work("large-fresh", "148 MiB, whole, into fresh memory", "get", 1, LARGE, environment=WHOLE, **COLD),
        Work("large-ranges-fresh", "148 MiB, in ranges, into fresh memory", "get_ranges", 1, LARGE, 16, **COLD),
    ],
    "loader": [
        Work("loader-0", "DataLoader, 4,000 x 128 KiB, no workers", "loader", 4000, MEDIUM, first=BATCH),
        Work("loader-fork", "DataLoader, 4,000 x 128 KiB, 2 forked workers", "loader", 4000, MEDIUM, **FORKED),
        Work("loader-spawn", "DataLoader, 4,000 x 128 KiB, 2 spawned workers", "loader", 4000, MEDIUM, **SPAWNED),
        Work("loader-map-0", "the same, map style, no workers", "loader_map", 4000, MEDIUM, first=BATCH),
        Work("loader-map-fork", "the same, map style, 2 forked workers", "loader_map", 4000, MEDIUM, **FORKED),
        Work("loader-map-spawn", "the same, map style, 2 spawned workers", "loader_map", 4000, MEDIUM, **SPAWNED),
    ],
    "checkpoint": [
        Work("save", "torch.save of 512 MiB to SeaweedFS", "save", 1, STATE_BYTES, server="seaweedfs", first=0),
        Work("load", "torch.load of 512 MiB from SeaweedFS", "load", 1, STATE_BYTES, server="seaweedfs", first=0),
        Work("load-nginx", "torch.load of 512 MiB from nginx", "load", 1, STATE_BYTES, first=0),
    ],
    "list": [
        Work("list", "list 20,000 keys, prepared pages", "list", 20_000, 1),
        Work("list-seaweedfs", "list 20,000 keys of SeaweedFS", "list", 20_000, 1, server="seaweedfs"),
    ],
    "tls": [
        Work("tls-small", "TLS, 10,000 x 4 KiB, 16 in flight", "get_many", 10_000, SMALL, 16, "tls"),
        Work("tls-medium", "TLS, 4,000 x 128 KiB, 16 in flight", "get_many", 4000, MEDIUM, 16, "tls"),
        Work("tls-large", "TLS, 4 x 148 MiB, each whole", "get", 4, LARGE, server="tls", environment=WHOLE),
        Work("tls-large-ranges", "TLS, 4 x 148 MiB, each in ranges", "get_ranges", 4, LARGE, 16, "tls"),
    ],
    "latency": [
        Work("latency-small", "20 ms of latency, 10,000 x 4 KiB, 64 in flight", "get_many", 10_000, SMALL, 64, "latency"),
        Work("latency-medium", "20 ms of latency, 4,000 x 128 KiB, 64 in flight", "get_many", 4000, MEDIUM, 64, "latency"),
        Work("latency-large", "20 ms of latency, 4 x 148 MiB, in ranges", "get_ranges", 4, LARGE, 16, "latency"),
        Work("latency-fork", "20 ms of latency, 2 forked workers", "loader", 4000, MEDIUM, 1, "latency", **FORKED),
    ],
    "file": _files("file"),
    "direct": _files("direct"),
}
