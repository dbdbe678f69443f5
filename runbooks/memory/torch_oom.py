"""PyTorch's out-of-memory message, in the forms of its versions, and what follows from its figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = r"[0-9.]+ (?:bytes|KiB|MiB|GiB|TiB)"
_SCALE_GIB = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 1024.0}

_CURRENT = re.compile(
    rf"(?:(?P<api>CUDA|HIP|XPU) out of memory\. )?Tried to allocate (?P<tried>{_SIZE})\. "
    rf"GPU (?P<gpu>[0-9]+) has a total capac(?:i)?ty of (?P<total>{_SIZE}) of which (?P<free>{_SIZE}) is free\."
    rf"(?P<others>(?: Process [0-9]+ has {_SIZE} memory in use\.)*)"
    rf"(?: Including non-PyTorch memory, this process has (?P<in_use>{_SIZE}) memory in use\.)?"
    rf"(?: (?P<allowed>{_SIZE}) allowed;)?"
    rf"(?: Of the allocated memory (?P<allocated>{_SIZE}) is allocated by PyTorch,"
    rf"(?: with (?P<private>{_SIZE}) allocated in private pools \(e\.g\., CUDA Graphs\),)?"
    rf" and (?P<reserved>{_SIZE}) is reserved by PyTorch but unallocated)?"
)
_OLDER = re.compile(
    rf"(?:(?P<api>CUDA|HIP) out of memory\. )?Tried to allocate (?P<tried>{_SIZE}) \(GPU (?P<gpu>[0-9]+); (?P<total>{_SIZE}) total capacity; "
    rf"(?P<allocated>{_SIZE}) already allocated; (?P<free>{_SIZE}) free; (?:(?P<allowed>{_SIZE}) allowed; )?(?P<reserved_total>{_SIZE}) reserved in total by PyTorch\)"
)
_OTHER = re.compile(rf"Process ([0-9]+) has ({_SIZE}) memory in use")
_SETTING = re.compile(r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF")
_PRINT_GIB = 0.02
_ABSURD_GIB = 65_536.0
"""`in_use` is nonsense on Windows; nothing that large exists."""


@dataclass(frozen=True)
class OutOfMemory:
    """Figures of one message, all in GiB; None = not printed. `others_gib` are the processes that the message names."""

    gpu: int
    tried_gib: float
    total_gib: float
    free_gib: float
    in_use_gib: float | None
    allowed_gib: float | None
    allocated_gib: float | None
    private_pools_gib: float | None
    reserved_unallocated_gib: float | None
    named_processes: tuple[tuple[int, float], ...]
    exact_mib: dict[str, float]
    """tried and free in MiB as printed, for differences that rounding to GiB would hide."""
    own_listed: bool = False
    """True when this process is among the listed ones (inside a container) and the clause about 'this process' is missing."""
    setting: str = "PYTORCH_CUDA_ALLOC_CONF"
    """The variable that the message's own hint names."""

    @property
    def outside_pytorch_gib(self) -> float | None:
        """in use - allocated - reserved but unallocated: context, NCCL, cuBLAS, other libraries. None when a term is missing."""
        if self.in_use_gib is None or self.allocated_gib is None or self.reserved_unallocated_gib is None:
            return None
        return self.in_use_gib - self.allocated_gib - self.reserved_unallocated_gib

    @property
    def others_gib(self) -> float | None:
        """Device memory of other processes: total - free - in use, or what the message lists where this process's share is not printed."""
        if self.in_use_gib is None:
            return sum(size for _, size in self.named_processes) if self.own_known_elsewhere else None
        return max(0.0, self.total_gib - self.free_gib - self.in_use_gib)

    @property
    def own_known_elsewhere(self) -> bool:
        """True when none of the listed processes can be this one, because each is smaller than what this one holds."""
        return bool(self.named_processes) and self.allocated_gib is not None

    @property
    def short_by_gib(self) -> float:
        """What was missing: tried - free (below zero when the request would have fitted by the driver's view)."""
        return self.tried_gib - self.free_gib

    @property
    def fragmentation_possible(self) -> bool:
        """Enough bytes are cached but in pieces: reserved but unallocated >= the request. The only evidence that the message holds."""
        return self.reserved_unallocated_gib is not None and self.reserved_unallocated_gib >= self.tried_gib


def size_gib(text: str) -> float:
    """GiB of a printed size such as '112.00 MiB'. Raises ValueError for another form."""
    number, _, unit = text.partition(" ")
    return float(number) * _SCALE_GIB[unit]


def parse_out_of_memory(text: str) -> OutOfMemory | None:
    """The message's figures, or None when the text holds no complete message of a known form."""
    found = _CURRENT.search(text) or _OLDER.search(text)
    if not found:
        return None
    groups = found.groupdict()
    try:
        sizes = {
            name: size_gib(groups[name])
            for name in (
                "tried",
                "total",
                "free",
                "in_use",
                "allowed",
                "allocated",
                "private",
                "reserved",
                "reserved_total",
            )
            if groups.get(name)
        }
        named = tuple((int(pid), size_gib(size)) for pid, size in _OTHER.findall(groups.get("others") or ""))
    except (ValueError, KeyError):
        return None
    if sizes["total"] <= 0:
        return None  # a damaged message: no device holds nothing
    in_use = sizes.get("in_use")
    if in_use is not None and (in_use > _ABSURD_GIB or in_use < sizes.get("allocated", 0.0) - _PRINT_GIB):
        in_use = None  # some drivers answer 0 for the process's own use
    own_listed = False
    reserved = sizes.get("reserved")
    if reserved is None and "reserved_total" in sizes:
        reserved = sizes["reserved_total"] - sizes["allocated"]
    if groups.get("in_use") is None and "allocated" in sizes and reserved is not None:
        held = sizes["allocated"] + reserved
        mine = min((size for _, size in named if size >= held - _PRINT_GIB), default=None)
        if mine is not None:
            own_listed, in_use = True, mine
            named = tuple(process for process in named if process[1] != mine)
    setting = _SETTING.search(text)
    return OutOfMemory(
        gpu=int(groups["gpu"]),
        tried_gib=sizes["tried"],
        total_gib=sizes["total"],
        free_gib=sizes["free"],
        in_use_gib=in_use,
        allowed_gib=sizes.get("allowed"),
        allocated_gib=sizes.get("allocated"),
        private_pools_gib=sizes.get("private"),
        reserved_unallocated_gib=reserved,
        named_processes=named,
        exact_mib={name: sizes[name] * 1024 for name in ("tried", "free")},
        own_listed=own_listed,
        setting=setting.group(0) if setting else "PYTORCH_CUDA_ALLOC_CONF",
    )
