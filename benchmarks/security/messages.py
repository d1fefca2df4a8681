"""Attempts of one program to send a bit to another, and whether the bit arrives.

In a *message*, the sender does something if the bit is one, and a later program, or one that runs at the same time,
measures something. The message arrives if some measured number separates ones from zeros in several rounds. Times are
not measured: the sandbox does not promise that programs cannot slow each other down.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.security.c_library import C_LIBRARY
from lang_envs.sandbox import Limits, Sandbox, syscalls

TRIALS = 8
"""Repetitions of each value of the bit in one round."""
SEPARATES = 0.4
"""Minimum distance of a measurement's area under the ROC curve from one half: by chance once in 2,000."""
_AT_ONCE_SECONDS = 0.1
_CONFIRMATIONS = 2
"""Further rounds in which a suspected message must arrive."""


@dataclass(frozen=True)
class Message:
    """``send`` runs if the bit is one, ``clear`` if it is zero; ``receive`` is a function's body."""

    name: str
    calls: str
    """System calls that carry the message."""
    send: str
    receive: str
    clear: str = ""
    once: bool = False
    """After ``send``, the process cannot send other messages."""


_PRELUDE = f"""{C_LIBRARY}
import fcntl, os, resource, select, signal, struct, sys, time
import numpy
libc.mmap.restype = libc.syscall.restype = ctypes.c_long
NUMBERS = {syscalls.numbers(platform.machine())!r}
def call(name, *arguments):
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(ctypes.c_long(NUMBERS[name]), *arguments)
def far():
    return openblas() + 0xA00000
class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
def mapped(size, flags=0x22, use=3):
    return libc.mmap(None, ctypes.c_size_t(size), use, flags, -1, ctypes.c_long(0))
def clock(number):
    spec = Timespec()
    return [call("clock_gettime", number, ctypes.byref(spec)), spec.seconds, spec.nanoseconds]
"""

MESSAGES = (
    Message(
        "inode numbers of pipes",
        "pipe2 fstat dup write",
        """
for _ in range(600):
    ends = os.pipe()
    number = os.fstat(ends[0]).st_ino & 511
    os.close(ends[0]); os.close(ends[1])
    if 280 < number < 300: break
""",
        """
ends = os.pipe()
return [(os.fstat(ends[0]).st_ino & 511) // 256]
""",
        """
for _ in range(600):
    ends = os.pipe()
    number = os.fstat(ends[0]).st_ino & 511
    os.close(ends[0]); os.close(ends[1])
    if 24 < number < 44: break
""",
    ),
    Message("pipes that are there", "pipe2", "held = [os.pipe() for _ in range(28)]", "return os.pipe()"),
    Message(
        "inode number and times of what is inherited",
        "fstat",
        "os.fstat(0); os.write(1, b'x' * 5000); os.read(0, 10)",
        "return [x for n in range(4) for x in (os.fstat(n).st_ino & 15, os.fstat(n).st_size)]",
    ),
    Message(
        "limits of resources",
        "getrlimit prlimit64",
        """
for kind in range(16):
    if kind != resource.RLIMIT_AS: resource.setrlimit(kind, (3, 3))
""",
        "return [x for kind in range(16) for x in resource.getrlimit(kind)]",
        once=True,
    ),
    Message(
        "free memory and numbers of processes",
        "sysinfo mmap brk",
        "held = bytearray(24 << 20)",
        """
answer = (ctypes.c_ulong * 64)()
libc.sysinfo(answer)
return [answer[n] for n in range(4, 12)]
""",
    ),
    Message(
        "usage and page faults",
        "getrusage times",
        "held = bytearray(4 << 20)",
        "return [*resource.getrusage(resource.RUSAGE_SELF)[2:], *resource.getrusage(-1), *os.times()[:4]]",
    ),
    Message(
        "pages of a library evicted",
        "madvise mmap",
        "ctypes.string_at(far(), 1 << 16); libc.madvise(ctypes.c_void_p(far()), ctypes.c_size_t(1 << 16), 21)",
        """
before = resource.getrusage(0).ru_majflt
ctypes.string_at(far() + (1 << 15), 1)
return [resource.getrusage(0).ru_majflt - before]
""",
    ),
    Message(
        "pages of a library forgotten by this process",
        "madvise",
        "for advice in (4, 8): libc.madvise(ctypes.c_void_p(code()), ctypes.c_size_t(4096), advice)",
        "return [ctypes.string_at(code(), 64)[n] for n in range(64)]",
    ),
    Message(
        "pages of a library marked as large",
        "madvise",
        "for advice in (14, 15): libc.madvise(ctypes.c_void_p(code()), ctypes.c_size_t(1 << 21), advice)",
        "return [libc.madvise(ctypes.c_void_p(code()), ctypes.c_size_t(1 << 21), 14)]",
    ),
    Message(
        "other advice on memory",
        "madvise",
        """
for advice in (0, 1, 2, 3, 9, 10, 11, 12, 13, 16, 17, 18, 19, 22, 23, 25):
    libc.madvise(ctypes.c_void_p(code()), ctypes.c_size_t(4096), advice)
""",
        "return [libc.madvise(ctypes.c_void_p(code()), ctypes.c_size_t(4096), advice) for advice in range(26)]",
    ),
    Message(
        "waking who waits on a page of a library",
        "futex",
        "for _ in range(20): call('futex', ctypes.c_void_p(code()), 1, 1)",
        """
word = struct.unpack("=i", ctypes.string_at(code(), 4))[0]
return [call("futex", ctypes.c_void_p(code()), 0, word, ctypes.byref(Timespec(0, 20_000_000)))]
""",
    ),
    Message(
        "waiting on a page of a library",
        "futex",
        """
word = struct.unpack("=i", ctypes.string_at(code() + 8, 4))[0]
call("futex", ctypes.c_void_p(code() + 8), 0, word, ctypes.byref(Timespec(0, 3_000_000)))
""",
        """
woken = 0
end = time.monotonic() + 0.04
while time.monotonic() < end and woken < 1: woken = call("futex", ctypes.c_void_p(code() + 8), 1, 1)
return [woken]
""",
    ),
    Message(
        "the private kind of both",
        "futex",
        "for _ in range(20): call('futex', ctypes.c_void_p(code() + 16), 129, 1)",
        """
word = struct.unpack("=i", ctypes.string_at(code() + 16, 4))[0]
return [call("futex", ctypes.c_void_p(code() + 16), 128, word, ctypes.byref(Timespec(0, 20_000_000)))]
""",
    ),
    Message(
        "processor time of other processes",
        "clock_gettime clock_getres",
        "for _ in range(20000): pass",
        """
def used(process):
    status, seconds, nanoseconds = clock((~process << 3 | 2) & 0xFFFFFFFF)
    return -1 if status else seconds + nanoseconds / 1e9
near = [process for process in range(max(1, os.getpid() - 40), os.getpid() + 40) if process != os.getpid()]
seen = [x for x in map(used, near) if 0 <= x < 0.3]
return [max(seen, default=-1), len(seen)]
""",
    ),
    Message(
        "own clocks of processor time",
        "clock_gettime clock_getres",
        "for _ in range(20000): pass",
        "return [x > 0.5 for number in (2, 3) for x in clock(number)[:2]] + [time.clock_getres(n) for n in range(8)]",
    ),
    Message(
        "processors of other processes",
        "sched_getaffinity",
        "os.sched_setaffinity(0, {0})",
        """
room = ctypes.create_string_buffer(128)
return [x for process in range(20) for x in (call("sched_getaffinity", process, 128, room), room[0][0])]
""",
    ),
    Message(
        "process ids",
        "getpid getppid gettid getpgrp",
        "libc.fork() or os._exit(0)",
        "return [os.getpid(), os.getppid(), libc.gettid(), os.getpgrp()]",
    ),
    Message(
        "user ids and the names of the machine",
        "getuid geteuid getgid getegid uname getcwd",
        "libc.setfsuid(1); libc.setfsgid(1)\ntry: os.chdir('/tmp')\nexcept OSError: pass",
        "return [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), hash(os.uname()), hash(os.getcwd())]",
    ),
    Message(
        "flags of the descriptors that all inherit",
        "fcntl dup dup2 dup3 close",
        """
for number in range(3):
    for command, value in ((2, 1), (4, 0o6000), (8, 1), (10, 10), (1024, 0), (1031, 4096)):
        try: fcntl.fcntl(number, command, value)
        except OSError: pass
    try: os.set_blocking(number, False)
    except OSError: pass
    os.dup2(number, 40 + number)
""",
        """
values = []
for number in range(3):
    for command in (1, 3, 9, 11, 1025, 1032):
        try: values.append(fcntl.fcntl(number, command))
        except OSError as error: values.append(-error.errno)
return values
""",
        "for number in range(3): fcntl.fcntl(number, 4, 0)",
    ),
    Message(
        "locks on the descriptors that all inherit",
        "fcntl",
        """
for number in range(3):
    for act in (lambda: fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda: fcntl.lockf(number, fcntl.LOCK_EX)):
        try: act()
        except OSError: pass
""",
        """
values = []
for number in range(3):
    try: values.append(fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB) or 1)
    except OSError as error: values.append(-error.errno)
return values
""",
        """
for number in range(3):
    try: fcntl.flock(number, fcntl.LOCK_UN)
    except OSError: pass
""",
    ),
    Message(
        "places in the files that all inherit",
        "lseek read readv pread64 preadv write writev",
        """
for number in range(3):
    for act in (lambda: os.lseek(number, 77, 0), lambda: os.write(number, b"x" * 99), lambda: os.read(number, 9)):
        try: act()
        except OSError: pass
""",
        """
values = []
for number in range(4):
    for act in (lambda: os.lseek(number, 0, 1), lambda: len(os.read(number, 1)), lambda: len(os.pread(number, 1, 0))):
        try: values.append(act() if number < 3 else 0)
        except OSError as error: values.append(-error.errno)
return values
""",
    ),
    Message(
        "what is ready",
        "poll ppoll select pselect6",
        "os.write(1, b'x'); os.set_inheritable(0, True)",
        "return [len(part) for part in select.select([0, 1, 2], [0, 1, 2, 3], [0, 1, 2], 0)]",
    ),
    Message(
        "handlers, masks and stacks of signals",
        "rt_sigaction rt_sigprocmask sigaltstack rt_sigreturn",
        """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
""",
        """
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
stack = (ctypes.c_long * 3)()
libc.sigaltstack(None, stack)
return [len(blocked), stack[1] & 3, *(signal.getsignal(n) is signal.SIG_IGN for n in range(1, 65) if n not in (32, 33))]
""",
    ),
    Message(
        "addresses of new memory",
        "brk mmap munmap mremap",
        "held = [bytearray(n << 12) for n in range(1, 300)]; libc.sbrk(1 << 20)",
        "return [mapped(1 << 20) >> 12 & 0xFFFFF, libc.sbrk(0) >> 12 & 0xFFFFF, id(object()) >> 12 & 0xFFFFF]",
    ),
    Message(
        "writing into data of a library",
        "mprotect mmap",
        """
libc.mprotect(ctypes.c_void_p(code()), ctypes.c_size_t(4096), 7)
ctypes.memset(code() + 4090, 0x5A, 4)
ctypes.c_int.in_dll(libc, "optind").value = 99
""",
        "return [*ctypes.string_at(code() + 4090, 4), ctypes.c_int.in_dll(libc, 'optind').value]",
    ),
    Message(
        "memory that is shared",
        "mmap mremap",
        "here = mapped(1 << 20, 0x21); here > 0 and ctypes.memset(here, 0x77, 1 << 20)",
        "here = mapped(1 << 20, 0x21)\nreturn [here > 0, ctypes.string_at(here, 1)[0] if here > 0 else -1]",
    ),
    Message(
        "large pages that are set aside",
        "mmap",
        "here = mapped(2 << 20, 0x40022)\nif here > 0: ctypes.memset(here, 1, 2 << 20)",
        "return [mapped(2 << 20, 0x40022) > 0]",
    ),
    Message(
        "the pool of random bytes",
        "getrandom",
        "for _ in range(64): libc.getrandom(ctypes.create_string_buffer(512), ctypes.c_size_t(512), 3)",
        "return [libc.getrandom(ctypes.create_string_buffer(512), ctypes.c_size_t(512), 3)]",
    ),
    Message(
        "registrations with the scheduler",
        "membarrier rseq set_robust_list sched_yield",
        "for command in (4, 16, 64): call('membarrier', command, 0, 0)\ncall('set_robust_list', None, 24)",
        "return [call('membarrier', command, 0, 0) for command in (8, 32, 128)]",
    ),
    Message(
        "priority, name and other attributes of a process",
        "",
        """
for act in (lambda: os.nice(5), lambda: os.umask(0o777), lambda: signal.setitimer(signal.ITIMER_REAL, 1000)):
    try: act()
    except OSError: pass
libc.prctl(15, b"told"); libc.prctl(29, 1234567)
""",
        """
values = []
for act in (lambda: os.getpriority(0, 0), lambda: libc.prctl(30), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0):
    try: values.append(act())
    except OSError as error: values.append(-error.errno)
return values
""",
    ),
    Message(
        "the environment and NumPy's settings",
        "",
        "numpy.seterr(all='raise'); os.environ['TOLD'] = '1'",
        "return ['TOLD' in os.environ, numpy.geterr()['divide'] == 'raise', float(numpy.float32(1) / 3 == 1 / 3)]",
    ),
    Message(
        "the way in which a program ends",
        "exit exit_group",
        "os.abort()",
        "return [os.getpid(), os.getppid(), *[x for k in range(16) for x in resource.getrlimit(k)]]",
        once=True,
    ),
    Message(
        "time left in inherited memory",
        "clock_gettime nanosleep",
        """
end = time.process_time() + 0.01
while time.process_time() < end: pass
""",
        """
import gc
pools = {id(thing) >> 14 for thing in gc.get_objects()}
counts = [0] * 4
for pool in pools:
    x = numpy.frombuffer(ctypes.string_at(pool << 14, 1 << 14), numpy.float64)
    for n, (low, high) in enumerate(((0.01, 0.03), (9.9, 9.9999), (21.9, 21.9999), (0.015, 0.02))):
        counts[n] += int(((x > low) & (x < high)).sum())
return counts
""",
    ),
    Message(
        "the calls that take a path",
        "",
        """
for act in (lambda: os.stat("/told"), lambda: open("/tmp/told", "w"), lambda: os.mkdir("/told")):
    try: act()
    except OSError: pass
""",
        """
values = []
for act in (lambda: os.stat("/told").st_size, lambda: len(open("/tmp/told").read()), lambda: len(os.listdir("/"))):
    try: values.append(act())
    except OSError as error: values.append(-error.errno)
return values
""",
    ),
)

WITHOUT_STATE = frozenset(
    """
    clock_nanosleep exit exit_group getcpu gettimeofday nanosleep restart_syscall rt_sigreturn sched_yield time
    """.split()  # noqa: SIM905
)
"""Allowed calls without state, except what every program can see: the time and its processor."""


def send_program(messages: Sequence[Message], bit: int, seconds: float = 0.0) -> str:
    """Return a program that sends this bit by all messages, repeatedly for ``seconds``."""
    acts = [message.send if bit else message.clear for message in messages if not message.once]
    last = [message.send if bit else message.clear for message in messages if message.once]
    return f"""{_PRELUDE}
scope = dict(globals())
def act(texts):
    for text in texts:
        try:
            exec(text, scope)
        except Exception:
            pass
end = time.monotonic() + {seconds!r}
act({acts!r})
while time.monotonic() < end:
    act({acts!r}) if {bit} else time.sleep(0.001)
act({last!r})
output = [0.0]
"""


def receive_program(messages: Sequence[Message]) -> str:
    """Return a program that measures all messages: for each its numbers, padded to 80."""
    parts = []
    for number, message in enumerate(messages):
        body = "\n".join(f"    {line}" for line in message.receive.strip().splitlines())
        parts.append(f"def receive_{number}():\n{body}\n")
    return f"""{_PRELUDE}
{"".join(parts)}
output = []
for number in range({len(messages)}):
    try:
        values = [float(value) for value in globals()[f"receive_{{number}}"]()]
    except Exception as error:
        values = [-1000.0 - (getattr(error, "errno", None) or 0)]
    output.append(values[:80] + [0.0] * (80 - len(values)))
"""


def measure(sandbox: Sandbox, messages: Sequence[Message], bits: Sequence[int], at_once: bool) -> np.ndarray:
    """Send and receive each bit; return what was measured: (bits, messages, numbers)."""
    limits = Limits(wall_seconds=10, cpu_seconds=10, memory_bytes=512 << 20)
    receiver = receive_program(messages)
    seen = []
    with ThreadPoolExecutor(1) as thread:
        for bit in bits:
            sender = send_program(messages, bit, _AT_ONCE_SECONDS if at_once else 0.0)
            sending = thread.submit(sandbox.run, sender, {}, limits)
            if at_once:
                time.sleep(_AT_ONCE_SECONDS / 3)
            else:
                sending.result()
            result = sandbox.run(receiver, {}, limits)
            sending.result()
            if result.output is None:
                raise RuntimeError(f"nothing was received: {result.status}, {result.error}")
            seen.append(result.output)
    return np.array(seen)


def areas(seen: np.ndarray, bits: Sequence[int]) -> np.ndarray:
    """Return the area under the ROC curve of each number as a guess of the bit: (messages, numbers)."""
    ones, zeros = seen[np.array(bits) == 1], seen[np.array(bits) == 0]
    above = (ones[:, None] > zeros[None]).mean(axis=(0, 1)) + (ones[:, None] == zeros[None]).mean(axis=(0, 1)) / 2
    return np.asarray(above)


def received(sandbox: Sandbox, messages: Sequence[Message], at_once: bool, seed: int = 0) -> list[str]:
    """Return the names of the messages that arrive."""
    rng = np.random.default_rng(seed)
    suspected: np.ndarray | None = None
    for _ in range(1 + _CONFIRMATIONS):
        bits = rng.permutation([0, 1] * TRIALS).tolist()
        area = areas(measure(sandbox, messages, bits, at_once), bits) - 0.5
        now = np.where(area >= SEPARATES, 1, 0) - np.where(area <= -SEPARATES, 1, 0)
        suspected = now if suspected is None else np.where(suspected == now, now, 0)
        if not suspected.any():
            return []
    assert suspected is not None
    return [message.name for message, found in zip(messages, suspected, strict=True) if found.any()]
