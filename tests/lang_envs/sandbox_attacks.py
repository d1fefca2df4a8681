"""What a hostile program would try in the sandbox, as data: every act, how it must end, and which layers stop it.

A program performs its act and, only if the act succeeded, leaves `output = [1.0]`; a refusal propagates as an
exception. Programs that can do no harm at all end with `output = [0.0]`. Words like @LABELS@ are replaced before a run,
see `Range` in `test_sandbox_attacks.py`. No act is destructive where it succeeds: a call that needs a privilege is made
with arguments that are wrong beyond the check of the privilege, so that "invalid argument" says "would have worked".
"""

import platform
from dataclasses import dataclass, replace

LAYERS = ("namespaces", "private-root", "uid", "landlock", "rlimits", "nested-landlock", "seccomp")
"""The layers of the sandbox that can be switched off."""

# what a program of this table asks for beyond the calls that Python has: number on x86_64, number on aarch64
_NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "cachestat": (451, 451),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "eventfd2": (290, 19),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "get_robust_list": (274, 100),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "listmount": (458, 458),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mincore": (27, 232),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "signalfd4": (289, 74),
    "statmount": (457, 457),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "timerfd_create": (283, 85),
    "tkill": (200, 130),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, None),
    "vmsplice": (278, 75),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)

_CALL = f"""\
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
numbers = { ({name: pair[_COLUMN] for name, pair in _NUMBERS.items()}) }
def call(name, *arguments, would_be=()):
    number = name if isinstance(name, int) else numbers[name]
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    answer = libc.syscall(ctypes.c_long(number), *arguments)
    if answer == -1 and ctypes.get_errno() not in would_be:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
"""

_SEARCH = """\
import numpy as np
needle = "@TERCES@"[::-1].encode()
def holds(value):
    if isinstance(value, str):
        return needle in value.encode(errors="replace")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return needle in bytes(value)
    return isinstance(value, np.ndarray) and needle in value.tobytes()
"""

REFUSED = frozenset({"error"})
KILLED = frozenset({"violation"})
SLOW = frozenset({"timeout", "cpu limit"})
HARMLESS = frozenset({"ok"})
REJECTED = frozenset({"rejected"})
CRASH = frozenset({"crash"})


@dataclass(frozen=True)
class Attack:
    """One program that tries something, and how it ends."""

    number: int
    """Of the design's list; from 121 on, those added to it."""
    name: str
    family: str
    program: str
    ends: frozenset[str]
    """The states it may end in under all layers."""
    opens_without: frozenset[frozenset[str]] = frozenset()
    """Every smallest set of layers without which it succeeds. "user" stands for a sandbox that an ordinary user starts:
    its programs keep that user's identity. Without "namespaces" there is no "private-root" either."""
    alone: str = "any"
    """Who is shown to succeed with it in an unprotected process: "any" user, "root", or "nobody": nothing to show, or
    not to be tried on a machine that is still needed."""
    machines: frozenset[str] = frozenset({"x86_64", "aarch64"})
    seconds: float = 10.0
    """The wall limit. Where it is shorter, a time limit may be the end: such programs run only under all layers."""
    cpu: float = 10.0
    """The limit of processor time."""
    unsure: bool = False
    """Not every kernel lets it succeed, whatever is left out."""
    twice: bool = False
    """The act is what the second of two runs finds of the first."""

    @property
    def alone_succeeds(self) -> bool:
        """There is something to win; the others are programs that merely misbehave."""
        return "output = [1.0]" in self.program

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


def _act(
    number: int,
    name: str,
    family: str,
    program: str,
    ends: frozenset[str] = REFUSED,
    **others: object,
) -> Attack:
    """An act that counts as done when the program has reached its end."""
    program = program.strip("\n") + "\noutput = [1.0]\n"
    if "call(" in program:
        program = _CALL + program
    if "holds" in program:
        program = _SEARCH + program
    return Attack(number, name, family, program, ends, **others)  # type: ignore[arg-type]


def _harmless(
    number: int, name: str, family: str, program: str, ends: frozenset[str] = HARMLESS, **others: object
) -> Attack:
    """A program that may be scored: nothing is gained by it. It sets `output` itself."""
    program = program.strip("\n") + "\n"
    if "call(" in program:
        program = _CALL + program
    return Attack(number, name, family, program, ends, alone="nobody", **others)  # type: ignore[arg-type]


_READ = (
    _act(1, "open the label file", "read", 'assert open("@LABELS@", "rb").read()'),
    _act(2, "list the folder of the labels", "read", 'import os\nassert os.listdir("@FOLDER@")'),
    _act(3, "open /etc/passwd", "read", 'assert open("/etc/passwd").read()'),
    _act(4, "stat the label file", "read", 'import os\nassert os.stat("@LABELS@").st_size'),
    _act(
        5,
        "secrets in the own environment",
        "read",
        """
import os
assert any(holds(value) for value in os.environ.values())
""",
    ),
    _act(6, "/proc/self/environ", "read", 'open("/proc/self/environ", "rb").read()'),
    _act(
        7,
        "environment of the fork server",
        "read",
        'import os\nassert open(f"/proc/{os.getppid()}/environ", "rb").read(1)',
    ),
    _act(9, "memory of the fork server", "read", 'import os\nopen(f"/proc/{os.getppid()}/mem", "rb", 0).close()'),
    _act(
        10,
        "process_vm_readv on the fork server",
        "read",
        """
class Piece(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
here, there = Piece(ctypes.addressof(buffer), 8), Piece(id(None), 8)
assert call("process_vm_readv", os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 8
""",
        KILLED,
    ),
    _act(11, "where the fork server stands", "read", 'import os\nos.readlink(f"/proc/{os.getppid()}/cwd")'),
    _act(
        13,
        "data sets that come with scikit-learn",
        "read",
        "from sklearn.datasets import load_breast_cancer\nassert load_breast_cancer().target.size",
    ),
    _act(
        15,
        "labels in the frames of the callers",
        "read",
        """
import sys
frame, found = sys._getframe().f_back, False
while frame is not None:
    values = [*frame.f_locals.values(), *frame.f_globals.values()]
    found = found or any(holds(value) for value in values)
    frame = frame.f_back
assert found
""",
    ),
    _act(
        16,
        "open_by_handle_at",
        "read",
        """
handle = ctypes.create_string_buffer(8 + 128)
ctypes.c_uint.from_buffer(handle).value = 128
place, path = ctypes.c_int(), b"@LABELS@"
call("name_to_handle_at", -100, path, handle, ctypes.byref(place), 0)
where = os.open("@FOLDER@", os.O_RDONLY)
os.close(call("open_by_handle_at", where, handle, os.O_RDONLY))
""",
        KILLED,
        alone="root",
    ),
    _act(17, "io_uring", "read", 'os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(120)))', KILLED),
    _act(
        18, "the kernel's log", "read", 'call("syslog", 3, ctypes.create_string_buffer(64), 64)', KILLED, alone="root"
    ),
    _act(121, "open /etc/shadow", "read", 'open("/etc/shadow").close()', alone="root"),
    _act(122, "environment of the trainer", "read", 'assert open("/proc/@PARENT@/environ", "rb").read(1)'),
    _act(123, "list of processes", "read", 'import os\nassert "1" in os.listdir("/proc")'),
    _act(124, "the label file through /proc/self/root", "read", 'assert open("/proc/self/root@LABELS@", "rb").read()'),
    _act(125, "the label file by many steps upwards", "read", 'assert open("../" * 40 + "@LABELS@"[1:], "rb").read()'),
    _act(126, "O_PATH on the label file", "read", 'import os\nos.close(os.open("@LABELS@", os.O_PATH))'),
    _act(127, "chdir to the labels", "read", 'import os\nos.chdir("@FOLDER@")'),
    _act(
        128,
        "watch the label file",
        "read",
        """
watch = call("inotify_init1", 0)
call("inotify_add_watch", watch, b"@LABELS@", 2)
""",
    ),
    _act(129, "access() on the label file", "read", 'import os\nassert os.access("@LABELS@", os.F_OK)'),
    _act(130, "extended attributes of the label file", "read", 'import os\nos.listxattr("@LABELS@")'),
    _act(131, "statvfs", "read", 'import os\nos.statvfs("@FOLDER@")'),
    _act(
        132,
        "page-cache residency by mincore",
        "read",
        """
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_long(0))
call("mincore", page, 4096, ctypes.create_string_buffer(1))
""",
    ),
    _act(133, "list the devices", "read", 'import os\nassert len(os.listdir("/dev")) > 5'),
    _act(134, "own memory map", "read", 'assert open("/proc/self/maps").read()'),
    _act(
        135,
        "labels among the objects of the interpreter",
        "read",
        """
import gc
found = False
for thing in gc.get_objects():
    for value in [thing, *gc.get_referents(thing)]:
        found = found or (value is not needle and holds(value))
assert found
""",
    ),
    _act(
        136,
        "environment by the C library",
        "read",
        """
import ctypes
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
assert libc.getenv(b"LANG_ENVS_ATTACK")
""",
    ),
    _act(
        137,
        "descriptors left open: a file or a folder",
        "read",
        """
import os, stat
kinds = []
for number in range(3, 1024):
    try:
        kinds.append(os.fstat(number).st_mode)
    except OSError:
        pass
assert any(stat.S_ISDIR(kind) for kind in kinds)
""",
    ),
    _act(
        138,
        "the mount table by listmount",
        "read",
        """
question = (ctypes.c_uint64 * 3)(24, 0xFFFFFFFFFFFFFFFF, 0)
call("listmount", question, (ctypes.c_uint64 * 64)(), 64, 0)
""",
    ),
    _act(
        139,
        "read-only memory map of the label file",
        "read",
        """
import mmap, os
mmap.mmap(os.open("@LABELS@", os.O_RDONLY), 0, prot=mmap.PROT_READ).close()
""",
    ),
    _act(140, "numpy's own readers", "read", 'import numpy as np\nassert np.fromfile("@LABELS@", dtype=np.uint8).size'),
    _act(141, "descriptors of the fork server", "read", 'import os\nos.listdir(f"/proc/{os.getppid()}/fd")'),
    _act(142, "command line of the trainer", "read", 'assert open("/proc/@PARENT@/cmdline", "rb").read()'),
    _act(
        143,
        "what the machine has been doing",
        "read",
        'assert open("/proc/loadavg").read() and open("/proc/mounts").read()',
    ),
    _act(
        144,
        "list of the root folder beyond the libraries",
        "read",
        'import os\nassert {"etc", "home"} <= set(os.listdir("/"))',
    ),
    _act(
        145,
        "openat2, which a filter cannot look into",
        "read",
        """
how = (ctypes.c_uint64 * 3)(0, 0, 0)
os.close(call("openat2", -100, b"@LABELS@", how, 24))
""",
    ),
    _act(324, "import the suite itself", "read", "import lang_envs.core"),
)

_WRITE = (
    _act(20, "create a file", "write", 'open("@FOLDER@/new", "w").close()'),
    _act(21, "overwrite the label file", "write", 'open("@LABELS@", "wb").write(b"0")'),
    _act(22, "truncate the label file", "write", 'import os\nos.truncate("@LABELS@", 0)'),
    _act(23, "chmod", "write", 'import os\nos.chmod("@CANARY@", 0o600)'),
    _act(26, "chown", "write", 'import os\nos.chown("@CANARY@", os.getuid(), os.getgid())'),
    _act(27, "make a symbolic link", "write", 'import os\nos.symlink("@LABELS@", "@FOLDER@/new")'),
    _act(
        28,
        "write into scikit-learn",
        "write",
        "import os, sklearn\nos.close(os.open(sklearn.__file__, os.O_WRONLY))",
        alone="root",
    ),
    _act(29, "/dev/shm", "write", 'import os\nopen("/dev/shm/@WORD@", "w").close()\nos.unlink("/dev/shm/@WORD@")'),
    _act(
        31,
        "write through /proc/self/mem",
        "write",
        """
import ctypes
buffer = ctypes.create_string_buffer(8)
with open("/proc/self/mem", "r+b", 0) as memory:
    memory.seek(ctypes.addressof(buffer))
    memory.write(b"x")
assert buffer.raw[:1] == b"x"
""",
    ),
    _act(
        32,
        "write into the parent's copy of the inputs",
        "write",
        """
import os
inside, done = inputs["x_train"].tobytes()[:512], False
for number in range(3, 1024):
    try:
        if inside in os.pread(number, 1 << 20, 0):
            done = done or os.pwrite(number, b"x", 0) == 1
    except OSError:
        pass
assert done
""",
    ),
    _act(
        33, "mount a tmpfs", "write", 'call("mount", b"none", b"@FOLDER@", b"tmpfs", 0, None)', KILLED, alone="nobody"
    ),
    _act(146, "make a hard link", "write", 'import os\nos.link("@CANARY@", "@FOLDER@/new")'),
    _act(147, "make a folder", "write", 'import os\nos.mkdir("@FOLDER@/new")'),
    _act(148, "rename", "write", 'import os\nos.rename("@CANARY@", "@FOLDER@/new")'),
    _act(149, "unlink", "write", 'import os\nos.unlink("@CANARY@")'),
    _act(150, "a temporary file", "write", "import tempfile\ntempfile.TemporaryFile().close()"),
    _act(
        151,
        "an unnamed file (O_TMPFILE)",
        "write",
        'import os\nos.close(os.open("@FOLDER@", os.O_TMPFILE | os.O_RDWR))',
    ),
    _act(152, "set times", "write", 'import os\nos.utime("@CANARY@", (1, 1))'),
    _act(153, "set an extended attribute", "write", 'import os\nos.setxattr("@CANARY@", "user.x", b"1")'),
    _act(154, "make a named pipe", "write", 'import os\nos.mkfifo("@FOLDER@/new")'),
    _act(155, "memfd_create", "write", 'os.write(call("memfd_create", b"x", 0), b"x")'),
    _act(
        156,
        "lock a file of the library",
        "write",
        """
import fcntl, numpy
file = open(numpy.__file__, "rb")
fcntl.flock(file, fcntl.LOCK_SH)
""",
    ),
    _act(
        157,
        "record lock on a file of the library",
        "write",
        """
import fcntl, numpy
file = open(numpy.__file__, "rb")
fcntl.lockf(file, fcntl.LOCK_SH)
""",
    ),
    _act(158, "a new file system by fsopen", "write", 'os.close(call("fsopen", b"tmpfs", 0))', KILLED, alone="root"),
    _act(
        159,
        "clone a mount by open_tree",
        "write",
        'os.close(call("open_tree", -100, b"/", 0x80001))',
        KILLED,
        alone="root",
    ),
    _act(
        160,
        "mount_setattr",
        "write",
        'call("mount_setattr", -100, b"/", 0, (ctypes.c_uint64 * 4)(), 32)',
        KILLED,
        alone="root",
    ),
    _act(
        161, "swapon", "write", 'call("swapon", b"@FOLDER@/missing", 0, would_be=[errno.ENOENT])', KILLED, alone="root"
    ),
    _act(162, "acct", "write", 'call("acct", b"@FOLDER@/missing", would_be=[errno.ENOENT])', KILLED, alone="root"),
    _act(
        163,
        "quotactl",
        "write",
        'call("quotactl", 0x80000700, b"@FOLDER@/missing", 0, 0, would_be=[errno.ENOENT])',
        KILLED,
    ),
    _act(
        164,
        "data home of scikit-learn",
        "write",
        'from sklearn.datasets import get_data_home\nget_data_home("@FOLDER@/new")',
    ),
    _act(165, "np.save", "write", 'import numpy as np\nnp.save("@FOLDER@/new", np.zeros(3))'),
    _act(
        166,
        "a shared writable map of the label file",
        "write",
        """
import mmap, os
mmap.mmap(os.open("@LABELS@", os.O_RDWR), 0)[0:1] = b"0"
""",
    ),
    _act(
        167,
        "create an empty file with a read-only open",
        "write",
        'import os\nos.close(os.open("@FOLDER@/new", os.O_RDONLY | os.O_CREAT))',
    ),
    _act(
        168,
        "truncate with a read-only open",
        "write",
        'import os\nos.close(os.open("@LABELS@", os.O_RDONLY | os.O_TRUNC))',
    ),
)

_NETWORK = (
    _act(34, "TCP connection", "network", 'import socket\nsocket.create_connection(("127.0.0.1", @TCP@), 2).close()'),
    _act(35, "TCP listener", "network", 'import socket\nsocket.create_server(("127.0.0.1", 0)).close()'),
    _act(
        36,
        "UDP datagram",
        "network",
        'import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", @UDP@))',
    ),
    _act(37, "look up a name", "network", 'import socket\nassert socket.getaddrinfo("localhost", 80)'),
    _act(38, "unix socket by path", "network", 'import socket\nsocket.socket(socket.AF_UNIX).connect("@UNIX@")'),
    _act(
        40,
        "raw socket",
        "network",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()",
        alone="root",
    ),
    _act(41, "pair of sockets", "network", "import socket\nsocket.socketpair()"),
    _act(169, "abstract unix socket", "network", 'import socket\nsocket.socket(socket.AF_UNIX).connect("\\x00@WORD@")'),
    _act(
        170,
        "listen on an abstract unix socket",
        "network",
        """
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\x00@WORD@ too")
listener.listen()
""",
    ),
    _act(
        171, "netlink socket", "network", "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()"
    ),
    _act(172, "vsock socket", "network", "import socket\nsocket.socket(40, socket.SOCK_STREAM).close()"),
    _act(
        173,
        "packet socket",
        "network",
        "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768).close()",
        alone="root",
    ),
    _act(
        174,
        "a page by urllib",
        "network",
        """
import urllib.request
urllib.request.urlopen("http://127.0.0.1:@TCP@/", timeout=2).read()
""",
    ),
    _act(
        175,
        "multipath TCP connection",
        "network",
        """
import socket
line = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
line.settimeout(2)
line.connect(("127.0.0.1", @TCP@))
""",
    ),
    _act(
        176,
        "TCP fast open: data without connect",
        "network",
        """
import socket
line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
line.sendto(b"x", 0x20000000, ("127.0.0.1", @TCP@))
""",
    ),
    _act(
        177,
        "the kernel's crypto sockets",
        "network",
        "import socket\nsocket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()",
    ),
    _act(
        178,
        "descriptors left open: a socket",
        "network",
        """
import os, stat
found = False
for number in range(3, 1024):
    try:
        found = found or stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        pass
assert found
""",
    ),
    _act(179, "IPv6 datagram", "network", "import socket\nsocket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()"),
    _act(180, "listen without bind", "network", "import socket\nline = socket.socket()\nline.listen()"),
    _act(
        181,
        "unix datagrams to the trainer's socket",
        "network",
        """
import socket
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "@DATAGRAM@")
""",
    ),
)

_PROCESSES = (
    _act(42, "fork", "processes", "import os\nif os.fork() == 0:\n    os._exit(0)"),
    _act(
        43,
        "fork bomb of five levels",
        "processes",
        """
import os, time
for _ in range(5):
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
""",
        alone="nobody",
    ),
    _act(44, "clone", "processes", 'if call("clone", 17, 0, 0, 0, 0) == 0:\n    os._exit(0)'),
    _act(45, "run a program", "processes", 'import subprocess\nsubprocess.run(["/usr/bin/true"], check=True)'),
    _act(
        46,
        "become another program",
        "processes",
        """
import os
os.execv("/bin/sh", ["sh", "-c", "echo done > @FOLDER@/marker"])
""",
        KILLED,
    ),
    _act(47, "os.system", "processes", 'import os\nassert os.system("true") == 0'),
    _act(
        48,
        "multiprocessing",
        "processes",
        """
import multiprocessing, os
worker = multiprocessing.get_context("fork").Process(target=os.getpid)
worker.start()
worker.join()
assert worker.exitcode == 0
""",
    ),
    _act(
        49,
        "SIGKILL to the fork server",
        "processes",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        alone="nobody",
    ),
    _act(50, "signal the own process group", "processes", "import os\nos.killpg(os.getpgrp(), 0)"),
    _act(52, "trace the fork server", "processes", 'call("ptrace", 0x4206, os.getppid(), 0, 0)', KILLED),
    _act(
        53,
        "a daemon that outlives its time",
        "processes",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3)
    os._exit(0)
""",
        alone="nobody",
    ),
    _act(
        55,
        "raise a limit",
        "processes",
        """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE):
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""",
    ),
    _act(
        56,
        "set a limit of the fork server",
        "processes",
        """
import os, resource
limit = resource.prlimit(os.getppid(), resource.RLIMIT_CORE)
resource.prlimit(os.getppid(), resource.RLIMIT_CORE, limit)
""",
    ),
    _act(58, "a user namespace of its own", "processes", 'call("unshare", 0x10000000)', KILLED),
    _act(
        59,
        "a thread",
        "processes",
        """
import threading
ran = threading.Event()
threading.Thread(target=ran.set, daemon=True).start()
assert ran.wait(5)
""",
    ),
    _act(
        182,
        "clone3",
        "processes",
        """
wish = (ctypes.c_uint64 * 11)()
wish[4] = 17
if call("clone3", wish, 88) == 0:
    os._exit(0)
""",
    ),
    _act(183, "SIGKILL to the trainer", "processes", "import os, signal\nos.kill(@VICTIM@, signal.SIGKILL)"),
    _act(184, "signal 0 to the fork server", "processes", "import os\nos.kill(os.getppid(), 0)"),
    _act(185, "signal 0 to the trainer", "processes", "import os\nos.kill(@PARENT@, 0)"),
    _act(186, "signal 0 to all", "processes", "import os\nos.kill(-1, 0)"),
    _act(187, "tgkill on the fork server", "processes", 'call("tgkill", os.getppid(), os.getppid(), 0)'),
    _act(188, "tkill on the fork server", "processes", 'call("tkill", os.getppid(), 0)'),
    _act(
        189,
        "sigqueue to the fork server",
        "processes",
        """
note = ctypes.create_string_buffer(128)
ctypes.c_int.from_buffer(note, 8).value = -1
call("rt_sigqueueinfo", os.getppid(), 0, note)
""",
    ),
    _act(
        190,
        "signal through a pidfd",
        "processes",
        'call("pidfd_send_signal", call("pidfd_open", os.getppid(), 0), 0, None, 0)',
    ),
    _act(
        191,
        "take a descriptor of the fork server",
        "processes",
        'os.close(call("pidfd_getfd", call("pidfd_open", os.getppid(), 0), 0, 0))',
    ),
    _act(192, "no signal at the parent's death", "processes", 'call("prctl", 1, 0, 0, 0, 0)'),
    _act(193, "become dumpable", "processes", 'call("prctl", 4, 1, 0, 0, 0)'),
    _act(
        194,
        "set the processors of the fork server",
        "processes",
        "import os\nos.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))",
    ),
    _act(
        195,
        "set the priority of the fork server",
        "processes",
        "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, 0))",
    ),
    _act(196, "set the disk priority of the fork server", "processes", 'call("ioprio_set", 1, os.getppid(), 0x4004)'),
    _act(
        197,
        "read a limit of the fork server",
        "processes",
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_AS)",
    ),
    _act(198, "pages of the fork server", "processes", 'call("move_pages", os.getppid(), 0, None, None, None, 0)'),
    _act(
        199,
        "process_madvise on the fork server",
        "processes",
        """
class Piece(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]
there = Piece(id(None) & ~4095, 4096)
call("process_madvise", call("pidfd_open", os.getpid(), 0), ctypes.byref(there), 1, 20, 0)
""",
        REFUSED,
    ),
    _act(200, "kcmp with the fork server", "processes", 'call("kcmp", os.getpid(), os.getppid(), 1, 0, 0)', KILLED),
    _act(
        201,
        "robust list of the fork server",
        "processes",
        'call("get_robust_list", os.getppid(), (ctypes.c_long * 1)(), (ctypes.c_long * 1)())',
    ),
    _act(
        202,
        "write into the fork server",
        "processes",
        """
class Piece(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(ctypes.string_at(id(Piece) + 8, 8), 8)
here, there = Piece(ctypes.addressof(buffer), 8), Piece(id(type) + 8, 8)
ctypes.memmove(buffer, id(type) + 8, 8)
assert call("process_vm_writev", os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 8
""",
        KILLED,
    ),
    _act(203, "ask to be traced", "processes", 'call("ptrace", 0, 0, 0, 0)', KILLED),
    _act(204, "a session of its own", "processes", "import os\nos.setsid()"),
    _act(205, "a process group of its own", "processes", "import os\nos.setpgid(0, 0)"),
    _act(
        206,
        "a program from memory",
        "processes",
        """
program = os.open("/bin/sh", os.O_RDONLY)
arguments = (ctypes.c_char_p * 4)(b"sh", b"-c", b"echo done > @FOLDER@/marker", None)
call("execveat", program, b"", arguments, (ctypes.c_char_p * 1)(), 0x1000)
""",
        REFUSED,
    ),
    _act(
        207,
        "signals by descriptor ownership",
        "processes",
        """
import fcntl, os
reader, writer = os.pipe()
fcntl.fcntl(reader, 8, os.getppid())
""",
    ),
    _act(208, "alarm", "processes", "import signal\nsignal.setitimer(signal.ITIMER_REAL, 100)"),
    _act(209, "kernel timers", "processes", 'call("timer_create", 1, None, (ctypes.c_int * 1)())'),
    _act(210, "spawn", "processes", 'import os\nos.waitpid(os.posix_spawn("/usr/bin/true", ["true"], {}), 0)'),
    _act(
        211,
        "fork of a pseudo terminal",
        "processes",
        "import pty, os\npid, line = pty.fork()\nif pid == 0:\n    os._exit(0)",
    ),
    _act(
        212,
        "a pool of threads",
        "processes",
        """
from multiprocessing.pool import ThreadPool
assert ThreadPool(2).map(abs, [1, 2]) == [1, 2]
""",
    ),
    _act(
        213,
        "vfork",
        "processes",
        """
import ctypes, mmap
code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
# pop rdx; mov eax, 58; syscall; push rdx; test eax, eax; jz child; ret; child: mov eax, 60; xor edi, edi; syscall
code.write(bytes.fromhex("5ab83a0000000f055285c07401c3b83c00000031ff0f05"))
routine = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
assert routine() > 0
""",
        machines=frozenset({"x86_64"}),
    ),
    _act(
        320,
        "lower a limit, to look killed from outside",
        "processes",
        """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
""",
    ),
    _act(
        321,
        "signal 0 to the process of the next program",
        "processes",
        """
import os, time
for _ in range(20):
    time.sleep(0.01)
    for pid in range(os.getpid() + 1, os.getpid() + 20):
        try:
            os.kill(pid, 0)
            break
        except ProcessLookupError:
            continue
    else:
        continue
    break
else:
    raise ProcessLookupError
""",
        alone="nobody",
    ),
)

_RESOURCES = (
    _act(
        60,
        "memory bomb",
        "resources",
        "pieces = [bytes([n]) * 10_000_000 for n in range(40)]",
        alone="nobody",
    ),
    _act(61, "loop for ever", "resources", "while True:\n    pass", SLOW, alone="nobody", seconds=6, cpu=1),
    _act(
        62,
        "loop in C, signals ignored",
        "resources",
        """
import re, signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
re.match("(a+)+$", "a" * 60 + "b")
""",
        SLOW,
        alone="nobody",
        seconds=0.4,
    ),
    _act(
        63,
        "sleep for ever",
        "resources",
        "import time\ntime.sleep(1_000_000)",
        frozenset({"timeout"}),
        alone="nobody",
        seconds=0.4,
    ),
    _act(
        64,
        "block all signals and loop",
        "resources",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True:\n    pass",
        SLOW,
        alone="nobody",
        seconds=0.4,
    ),
    _harmless(
        65, "print 100 MB", "resources", 'line = "x" * 1_000_000\nfor _ in range(100):\n    print(line)\noutput = [0.0]'
    ),
    _harmless(
        66,
        "a huge answer",
        "resources",
        "import numpy as np\noutput = np.zeros(20_000_000)",
        frozenset({"error", "rejected"}),
    ),
    _harmless(
        68,
        "deep recursion",
        "resources",
        """
import sys
sys.setrecursionlimit(10**9)
def down(n):
    return down(n + 1) + 1
output = [float(down(0))]
""",
        frozenset({"error", "crash", "timeout", "cpu limit"}),
        seconds=8,
    ),
    _harmless(
        69,
        "overflow of the C stack",
        "resources",
        """
import pickle, sys
sys.setrecursionlimit(10**9)
nest = []
for _ in range(2_000_000):
    nest = [nest]
output = [float(len(repr(nest)))]
""",
        frozenset({"error", "crash", "timeout", "cpu limit"}),
        seconds=8,
    ),
    _act(70, "descriptors", "resources", "import os\nfor _ in range(500):\n    os.dup(0)", alone="nobody"),
    _act(
        71,
        "memory of pipes",
        "resources",
        """
import os
for _ in range(200):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.write(writer, bytes(65536))
""",
        alone="nobody",
    ),
    _harmless(74, "compile bomb", "resources", "output = [float(len(str(9**9**9)))]", SLOW, seconds=0.4),
    _act(215, "memory that is never touched", "resources", "import numpy as np\nnp.zeros(3 * 10**8)", alone="nobody"),
    _act(
        216,
        "shared anonymous memory",
        "resources",
        """
import mmap
maps = []
for _ in range(8):
    piece = mmap.mmap(-1, 64 << 20)
    piece[:: 1 << 12] = b"x" * len(range(0, len(piece), 1 << 12))
    maps.append(piece)
""",
        alone="nobody",
    ),
    _act(
        217,
        "ignore the CPU limit",
        "resources",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass",
        SLOW,
        alone="nobody",
        seconds=6,
        cpu=1,
    ),
    _act(
        218,
        "lock memory",
        "resources",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x22, -1, ctypes.c_long(0))
if libc.mlock(ctypes.c_void_p(page), ctypes.c_size_t(1 << 20)):
    raise OSError(ctypes.get_errno(), "mlock")
""",
    ),
    _harmless(
        219,
        "an object that never becomes an array",
        "resources",
        """
class Never:
    def __array__(self, *a, **k):
        while True:
            pass
output = Never()
""",
        SLOW,
        seconds=0.4,
    ),
    _act(
        220,
        "wait for ever for nothing",
        "resources",
        "import select\nselect.select([], [], [])",
        frozenset({"timeout"}),
        alone="nobody",
        seconds=0.4,
    ),
    _harmless(
        221,
        "brackets without end",
        "resources",
        "output = [float(len(" + "(" * 5_000 + ")" * 5_000 + "))]",
        frozenset({"error", "crash"}),
    ),
    _harmless(
        222,
        "an expression without end",
        "resources",
        "output = [0.0" + " + 0.0" * 5_000 + "]",
        frozenset({"ok", "error", "crash"}),
    ),
    _harmless(
        223,
        "twenty minutes of collection of garbage",
        "resources",
        """
class Late:
    def __del__(self):
        while True:
            pass
keep = Late()
output = [0.0]
""",
        frozenset({"ok", "timeout", "cpu limit"}),
        seconds=0.4,
    ),
    _act(
        224,
        "seven levels of zip bomb",
        "resources",
        """
import zlib
bomb = zlib.compress(bytes(100_000_000), 9)
for _ in range(3):
    bomb = zlib.compress(bomb, 9)
data = []
while True:
    data.append(zlib.decompress(zlib.compress(bytes(50_000_000), 1)))
""",
        frozenset({"error", "timeout", "cpu limit"}),
        alone="nobody",
        seconds=0.4,
    ),
    _act(
        225,
        "a core file",
        "resources",
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
        alone="any",
    ),
    _act(226, "kernel objects: event counters", "resources", 'call("eventfd2", 0, 0)\ncall("timerfd_create", 1, 0)'),
    _act(
        227,
        "splice pages into pipes",
        "resources",
        """
reader, writer = os.pipe()
class Piece(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]
page = ctypes.create_string_buffer(4096)
call("vmsplice", writer, ctypes.byref(Piece(ctypes.addressof(page), 4096)), 1, 0)
""",
    ),
)

_FORGERY = (
    _harmless(
        75,
        "write an answer into every descriptor",
        "forgery",
        """
import os, struct
for number in range(3, 1024):
    for forged in (bytes(8), b"\\xff" * 64, struct.pack("<d", 1.0) * 4096, b"ok", b"\\0" * 4096):
        for write in (lambda: os.write(number, forged), lambda: os.pwrite(number, forged, 0)):
            try:
                os.set_blocking(number, False)
            except OSError:
                pass
            try:
                write()
            except OSError:
                pass
output = [0.0]
""",
        REJECTED,
    ),
    _harmless(76, "end without an answer", "forgery", "import os\nos._exit(0)", REFUSED),
    _harmless(
        77,
        "replace the metric",
        "forgery",
        """
import sklearn.metrics, numpy, json
sklearn.metrics.roc_auc_score = numpy.mean = json.dumps = lambda *a, **k: 1.0
output = [0.0]
""",
    ),
    _harmless(
        78,
        "an object that lies about its array",
        "forgery",
        """
class Liar:
    __array_interface__ = {"shape": (2**40,), "typestr": "<f8", "data": (8, False), "version": 3}
output = Liar()
""",
        REFUSED,
    ),
    _harmless(80, "not a number", "forgery", 'output = [float("nan")]', REJECTED),
    _harmless(81, "infinity", "forgery", 'output = [float("inf")]', REJECTED),
    _harmless(82, "complex numbers", "forgery", "output = [0.0 + 1.0j]", REFUSED),
    _harmless(84, "a generator", "forgery", "output = (0.0 for _ in range(10))", REFUSED),
    _harmless(85, "constant predictions", "forgery", 'output = [0.5] * len(inputs["x_test"])'),
    _harmless(86, "SystemExit", "forgery", "raise SystemExit(0)", REFUSED),
    _harmless(
        87,
        "an exception whose text fails",
        "forgery",
        """
class Odd(Exception):
    def __str__(self):
        raise self
    __repr__ = __str__
raise Odd
""",
        REFUSED,
    ),
    _act(
        89,
        "count the evaluations in a module",
        "forgery",
        """
import numpy
numpy.seen = getattr(numpy, "seen", 0) + 1
assert numpy.seen > 1
""",
        twice=True,
    ),
    _act(
        90,
        "a module for the next evaluation",
        "forgery",
        """
import sys
known = "poison" in sys.modules
sys.modules["poison"] = sys.modules["sklearn.linear_model"] = sys
assert known
""",
        twice=True,
    ),
    _harmless(
        91,
        "work at the end of the process",
        "forgery",
        """
import atexit, os, weakref
class Late:
    def __del__(self):
        os.write(2, b"late")
keep = Late()
weakref.finalize(keep, os._exit, 0)
atexit.register(os._exit, 0)
output = [0.0]
""",
    ),
    _harmless(228, "end as the machinery would", "forgery", "import os\nos._exit(99)", REFUSED),
    _harmless(229, "KeyboardInterrupt", "forgery", "raise KeyboardInterrupt", REFUSED),
    _harmless(
        230,
        "an exception that is none",
        "forgery",
        "raise type('Final', (BaseException,), {})('x')",
        REFUSED,
    ),
    _harmless(
        231,
        "an exception with a text of 200 MB",
        "forgery",
        "raise ValueError('x' * 200_000_000)",
        REFUSED,
    ),
    _harmless(
        232,
        "an exception that is one endless chain",
        "forgery",
        """
error = ValueError("x")
error.__cause__ = error.__context__ = error
raise error
""",
        REFUSED,
    ),
    _harmless(
        233,
        "an exception with surrogates and escapes",
        "forgery",
        "raise ValueError('\\ud800 \\x1b[2J \\0 \\r\\n' * 100)",
        REFUSED,
    ),
    _harmless(
        234,
        "an exception whose class lies",
        "forgery",
        """
class Meta(type):
    __name__ = property(lambda self: 1 / 0)
    __qualname__ = __module__ = __name__
class Odd(Exception, metaclass=Meta):
    pass
raise Odd("x")
""",
        REFUSED,
    ),
    _harmless(235, "no answer at all", "forgery", "pass", REFUSED),
    _harmless(236, "words for numbers", "forgery", 'output = ["zero", None]', REFUSED),
    _harmless(237, "objects for numbers", "forgery", "output = [object(), {}]", REFUSED),
    _harmless(
        238,
        "an array class with methods of its own",
        "forgery",
        """
import numpy as np
class Sly(np.ndarray):
    dtype = property(lambda self: 1 / 0)
    shape = property(lambda self: (10**9,))
    size = nbytes = property(lambda self: -1)
    def astype(self, *a, **k):
        return self
    def tobytes(self, *a, **k):
        return b"x" * 3
    def __len__(self):
        return 2**60
    def __array__(self, *a, **k):
        return self
    def __array_finalize__(self, other):
        pass
output = np.zeros(4).view(Sly)
""",
        frozenset({"ok", "error", "rejected"}),
    ),
    _harmless(
        239,
        "replace the ways to answer",
        "forgery",
        """
import builtins, os, struct
import numpy as np
def lie(*a, **k):
    return lie
for module in (os, struct, np):
    for name in ("write", "writev", "pwrite", "pack", "pack_into", "asarray", "array", "ascontiguousarray", "_exit"):
        if hasattr(module, name):
            setattr(module, name, lie)
for name in ("len", "isinstance", "str", "repr", "bytes", "memoryview", "type", "getattr"):
    setattr(builtins, name, lie)
output = [0.0]
""",
        frozenset({"ok", "error", "rejected", "crash"}),
    ),
    _harmless(
        240,
        "never come to an end of the process",
        "forgery",
        """
import os, sys
os._exit = os.abort = sys.exit = os.kill = lambda *a: None
output = [0.0]
""",
        HARMLESS,
    ),
    _harmless(
        241,
        "rewrite the functions that called",
        "forgery",
        """
import sys
frame = sys._getframe().f_back
while frame is not None:
    for name, value in list(frame.f_globals.items()):
        if callable(value) and not name.startswith("__") and frame.f_globals is not globals():
            frame.f_globals[name] = lambda *a, **k: 1.0
    frame = frame.f_back
output = [0.0]
""",
        frozenset({"ok", "error", "rejected", "crash", "timeout", "cpu limit"}),
        seconds=0.4,
    ),
    _harmless(
        242,
        "trace the code that reads the answer",
        "forgery",
        """
import sys
def trace(frame, event, argument):
    for name in list(frame.f_locals):
        frame.f_locals[name] = None
    raise RuntimeError("traced")
sys.setprofile(trace)
sys.settrace(trace)
frame = sys._getframe().f_back
while frame is not None:
    frame.f_trace = trace
    frame = frame.f_back
output = [0.0]
""",
        frozenset({"ok", "error", "rejected", "crash"}),
    ),
    _harmless(
        243,
        "close every descriptor",
        "forgery",
        "import os\nos.closerange(0, 1024)\noutput = [0.0]",
        REFUSED,
    ),
    _harmless(
        244,
        "close one by one",
        "forgery",
        """
import os
for number in range(1024):
    try:
        os.close(number)
    except OSError:
        pass
output = [0.0]
""",
        REFUSED,
    ),
    _harmless(
        245,
        "put other things in place of the descriptors",
        "forgery",
        """
import os
reader, writer = os.pipe()
for number in range(64):
    try:
        os.dup2(writer, number)
    except OSError:
        pass
output = [0.0]
""",
        REFUSED,
    ),
    _harmless(246, "a segmentation fault", "forgery", "import ctypes\nctypes.string_at(8)", CRASH),
    _harmless(247, "abort", "forgery", "import os\nos.abort()", CRASH),
    _harmless(
        248,
        "corrupt the interpreter",
        "forgery",
        "import ctypes\nctypes.memset(id(int), 0xFF, 256)\noutput = [int('1')]",
        frozenset({"crash", "error"}),
    ),
    _harmless(
        249,
        "fill the heap with rubbish",
        "forgery",
        "import ctypes\nctypes.memset(id(object()) & ~0xFFF, 0xA5, 1 << 16)\noutput = [0.0]",
        frozenset({"ok", "crash", "error", "violation", "timeout", "cpu limit"}),
        seconds=0.4,
    ),
    _harmless(
        250,
        "recursion limit of nearly nothing",
        "forgery",
        "import sys\nsys.setrecursionlimit(30)\noutput = [0.0]",
        frozenset({"ok", "error"}),
    ),
    _harmless(251, "one number without a shape", "forgery", "output = 0.0", REFUSED),
    _harmless(
        252,
        "thirty dimensions",
        "forgery",
        "import numpy as np\noutput = np.zeros((1,) * 30)",
        REFUSED,
    ),
    _harmless(253, "an answer without elements", "forgery", "output = []", frozenset({"ok", "error", "rejected"})),
    _harmless(
        254,
        "a view of a thousand million zeros",
        "forgery",
        "import numpy as np\noutput = np.broadcast_to(0.0, 10**9)",
        REFUSED,
    ),
    _harmless(
        255,
        "del output while it is read",
        "forgery",
        """
class Sneaky:
    def __array__(self, *a, **k):
        globals().clear()
        raise SystemExit(0)
output = Sneaky()
""",
        REFUSED,
    ),
    _harmless(
        256,
        "random numbers of the next evaluation",
        "forgery",
        "import numpy as np, random\nnp.random.seed(0)\nrandom.seed(0)\noutput = [0.0]",
    ),
    _harmless(
        257,
        "the inputs of the next evaluation",
        "forgery",
        "for value in inputs.values():\n    value[...] = 0\ninputs.clear()\noutput = [0.0]",
    ),
    _harmless(258, "a text that is no text", "forgery", "output = [0.0]\n# \ud800", REFUSED),
    _harmless(259, "a zero byte in the text", "forgery", "output = [0.0]\n# \0", REFUSED),
    _harmless(
        260,
        "another coding of the text",
        "forgery",
        "# -*- coding: utf-7 -*-\noutput = [0.0]",
        HARMLESS,
    ),
    _harmless(
        261,
        "a text of 1 MB",
        "forgery",
        "output = [0.0]\n" + "# " + "x" * 1_000_000,
        REFUSED,
    ),
    _harmless(262, "an answer before an error", "forgery", "output = [0.0]\nraise ValueError", REFUSED),
    _harmless(
        263,
        "an answer twice",
        "forgery",
        """
import sys
frame = sys._getframe().f_back
output = [0.0]
for _ in range(3):
    try:
        frame.f_globals.get("send", lambda *a: None)(b"ok", b"0")
    except Exception:
        pass
""",
        HARMLESS,
    ),
    _harmless(
        264,
        "stop the own process",
        "forgery",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\noutput = [0.0]",
        REFUSED,
    ),
    _harmless(
        265,
        "kill the own process",
        "forgery",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\noutput = [0.0]",
        REFUSED,
    ),
    _harmless(
        305,
        "an error that names a file of a library",
        "forgery",
        """
import sklearn, sys
raise ValueError(f"{sklearn.__file__!r} and ({sys.prefix}) and {sys.path} {sklearn.__file__.encode()}")
""",
        REFUSED,
    ),
    _harmless(
        306,
        "an import that fails in a library",
        "forgery",
        "from sklearn.linear_model import Missing",
        REFUSED,
    ),
    _harmless(
        307,
        "an error with the address of a file",
        "forgery",
        """
import sklearn
raise ValueError(f"file://{sklearn.__file__} at:{sklearn.__file__} v{sklearn.__file__}:1")
""",
        REFUSED,
    ),
    _harmless(
        308,
        "a file of a library that is no data",
        "forgery",
        """
import numpy as np
np.load(np.__file__, allow_pickle=True)
""",
        REFUSED,
    ),
    _harmless(
        310,
        "a forged answer, then no end",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQd", b"rslt", 0, 1, 1, 1, 8, 0.0))
while True:
    pass
""",
    ),
    _harmless(
        311,
        "half an answer, then no end",
        "forgery",
        """
import os, struct, time
os.write(3, struct.pack("=4sBBIIQ", b"rslt", 0, 1, 1, 1, 8) + b"half")
time.sleep(100)
""",
        frozenset({"timeout"}),
        seconds=0.4,
    ),
    _harmless(
        312,
        "the header of an endless answer",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQ", b"rslt", 0, 2, 2**32 - 1, 2**31, 8 * (2**32 - 1) * 2**31 % 2**64))
while True:
    os.write(3, bytes(65536))
""",
        REJECTED,
    ),
    _harmless(
        313,
        "a shape that is not that of the bytes",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQd", b"rslt", 0, 2, 7, 9, 8, 0.0))
""",
        REJECTED,
    ),
    _harmless(
        314,
        "a forged error full of rubbish",
        "forgery",
        """
import os, struct
rubbish = bytes.fromhex("ff1b5b324a00eda080e280ae") * 85 + b"...."
os.write(3, struct.pack("=4sBBIIQ", b"rslt", 1, 0, 0, 0, 1024) + rubbish)
os._exit(0)
""",
        REFUSED,
    ),
    _harmless(
        315,
        "zeros without end",
        "forgery",
        """
import os
while True:
    os.write(3, bytes(65536))
""",
        REJECTED,
    ),
    _harmless(
        316,
        "a forged answer that is not a number",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQd", b"rslt", 0, 1, 1, 1, 8, float("nan")))
""",
        REJECTED,
    ),
    _harmless(
        317,
        "a forged answer of no rows and many columns",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQ", b"rslt", 0, 2, 0, 2**32 - 1, 0))
""",
        frozenset({"ok", "rejected"}),
    ),
    _harmless(
        318,
        "two forged answers",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQd", b"rslt", 0, 1, 1, 1, 8, 0.0) * 50)
os._exit(99)
""",
    ),
    _harmless(
        319,
        "an error's text of 4 GB, as announced",
        "forgery",
        """
import os, struct
os.write(3, struct.pack("=4sBBIIQ", b"rslt", 1, 0, 0, 0, 2**32))
""",
        REJECTED,
    ),
    _harmless(
        322,
        "an answer byte by byte",
        "forgery",
        """
import os, struct, time
for byte in struct.pack("=4sBBIIQd", b"rslt", 0, 1, 1, 1, 8, 0.0):
    os.write(3, bytes([byte]))
    time.sleep(0.001)
""",
    ),
    _harmless(
        323,
        "an exception with a text of 1 GB by its own account",
        "forgery",
        """
class Long(Exception):
    def __str__(self):
        return "x" * 2**30
raise Long
""",
        REFUSED,
    ),
)

_ESCAPE = (
    _act(
        93,
        "builtins recovered by importlib",
        "escape",
        """
import importlib
assert importlib.import_module("builtins").open("@LABELS@", "rb").read()
""",
    ),
    _act(
        94,
        "loaders found among the subclasses",
        "escape",
        """
loaders = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "FileLoader"]
loaders = loaders or [type(__import__("os").__spec__.loader).__mro__[1]]
import importlib.machinery
assert importlib.machinery.SourceFileLoader("x", "@LABELS@").get_data("@LABELS@")
""",
    ),
    _act(95, "openat by its number", "escape", 'os.close(call("openat", -100, b"@LABELS@", 0))'),
    _act(98, "ask for the version of Landlock", "escape", 'call("landlock_create_ruleset", None, 0, 1)'),
    _act(
        99,
        "bpf",
        "escape",
        """
wish = (ctypes.c_uint64 * 16)()
call("bpf", 5, wish, 128, would_be=[errno.E2BIG])
""",
        KILLED,
        alone="root",
    ),
    _act(100, "become root", "escape", "import os\nos.setuid(0)", alone="root"),
    _act(101, "chroot", "escape", 'call("chroot", b"/")', KILLED, alone="root"),
    _act(102, "set the clock", "escape", 'call("settimeofday", None, None)', KILLED, alone="root"),
    _act(
        103,
        "restart the machine",
        "escape",
        'call("reboot", 0, 0, 0, None, would_be=[errno.EINVAL])',
        KILLED,
        alone="nobody",
    ),
    _act(
        266,
        "filter of its own that allows all",
        "escape",
        """
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_char_p)]
call("prctl", 38, 1, 0, 0, 0)
call("seccomp", 1, 0, ctypes.byref(Filter(1, bytes.fromhex("060000000000ff7f"))))
""",
    ),
    _act(
        267,
        "perf_event_open",
        "escape",
        """
wish = ctypes.create_string_buffer(bytes.fromhex("01000000" "40000000") + bytes(56), 128)
ctypes.c_uint64.from_buffer(wish, 40).value = 0x61
call("perf_event_open", wish, 0, -1, -1, 0)
""",
        KILLED,
    ),
    _act(268, "userfaultfd", "escape", 'call("userfaultfd", 1)', KILLED),
    _act(
        269,
        "pivot_root",
        "escape",
        'call("pivot_root", b"/", b"/", would_be=[errno.EINVAL, errno.EBUSY])',
        KILLED,
        alone="root",
    ),
    _act(
        270,
        "setns to the trainer",
        "escape",
        """
call("setns", call("pidfd_open", os.getppid(), 0), 0x04000000)
""",
        REFUSED,
        alone="root",
    ),
    _act(271, "kexec", "escape", 'call("kexec_load", 0, 17, None, 0, would_be=[errno.EINVAL])', KILLED, alone="nobody"),
    _act(
        272,
        "load a module of the kernel",
        "escape",
        'call("init_module", None, 0, b"", would_be=[errno.EFAULT, errno.ENOEXEC])',
        KILLED,
        alone="nobody",
    ),
    _act(
        273,
        "unload a module of the kernel",
        "escape",
        'call("delete_module", b"no such module", 2048, would_be=[errno.ENOENT])',
        KILLED,
        alone="nobody",
    ),
    _act(
        274,
        "call of the 32-bit kernel interface",
        "escape",
        """
import ctypes, mmap
code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
code.write(bytes.fromhex("53b814000000cd805bc3"))
routine = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
assert routine() > 0
""",
        KILLED,
        machines=frozenset({"x86_64"}),
    ),
    _act(
        275,
        "call of the x32 kernel interface",
        "escape",
        "call(0x40000000 + 39)",
        KILLED,
        alone="nobody",
        machines=frozenset({"x86_64"}),
    ),
    _act(
        276,
        "own descriptor table",
        "escape",
        'call("modify_ldt", 0, ctypes.create_string_buffer(64), 64)',
        KILLED,
        machines=frozenset({"x86_64"}),
    ),
    _act(
        277,
        "ports of the machine: iopl",
        "escape",
        'call("iopl", 3)',
        KILLED,
        alone="nobody",
        machines=frozenset({"x86_64"}),
    ),
    _act(
        278,
        "ports of the machine: ioperm",
        "escape",
        'call("ioperm", 0x80, 1, 1)',
        KILLED,
        alone="nobody",
        machines=frozenset({"x86_64"}),
    ),
    _act(279, "keyrings", "escape", 'call("keyctl", 0, -2, 1)', KILLED),
    _act(280, "a key that stays", "escape", 'call("add_key", b"user", b"@WORD@", b"x", 1, -2)', KILLED),
    _act(281, "shared memory of System V", "escape", 'call("shmctl", call("shmget", 0, 4096, 0o600), 0, None)'),
    _act(282, "semaphores of System V", "escape", 'call("semctl", call("semget", 0, 1, 0o600), 0, 0, 0)'),
    _act(283, "messages of System V", "escape", 'call("msgctl", call("msgget", 0, 0o600), 0, None)'),
    _act(
        284, "message queues", "escape", 'call("mq_open", b"@WORD@", 0o102, 0o600, None)\ncall("mq_unlink", b"@WORD@")'
    ),
    _act(
        285,
        "name of the machine",
        "escape",
        'call("sethostname", b"", -1, would_be=[errno.EINVAL])',
        KILLED,
        alone="root",
    ),
    _act(286, "/dev/mem", "escape", 'import os\nos.close(os.open("/dev/mem", os.O_RDONLY))', alone="nobody"),
    _act(
        287,
        "/dev/kmsg",
        "escape",
        'import os\nos.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))',
        alone="root",
    ),
    _act(288, "sysrq", "escape", 'import os\nos.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))', alone="nobody"),
    _act(
        289,
        "program for core files",
        "escape",
        'import os\nos.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))',
        alone="nobody",
    ),
    _act(
        290,
        "catch the signal of the filter",
        "escape",
        """
import signal
signal.signal(signal.SIGSYS, lambda *a: None)
call("ptrace", 0, 0, 0, 0)
""",
        KILLED,
        alone="any",
    ),
    _act(291, "fanotify", "escape", 'os.close(call("fanotify_init", 0x200, 0))', alone="any"),
    _act(
        292,
        "capabilities",
        "escape",
        """
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
call("capset", header, (ctypes.c_uint32 * 6)(*[0x200000] * 3, 0, 0, 0))
""",
        alone="root",
    ),
    _act(293, "groups", "escape", "import os\nos.setgroups([0])", alone="root"),
    _act(294, "another user", "escape", "import os\nos.setresuid(-1, 1, -1)", alone="root"),
    _act(295, "secret memory", "escape", 'call("memfd_secret", 0)', alone="nobody"),
    _act(296, "personality without random addresses", "escape", 'call("personality", 0x0040000)', KILLED),
    _act(
        297,
        "map of a new user namespace",
        "escape",
        'import os\nos.close(os.open("/proc/self/uid_map", os.O_WRONLY))',
        alone="root",
    ),
    _act(
        298,
        "adjust the clock",
        "escape",
        """
change = ctypes.create_string_buffer(208)
ctypes.c_uint.from_buffer(change).value = 0x0100
call("clock_adjtime", 0, change)
""",
        KILLED,
        alone="nobody",
    ),
    _act(
        299,
        "migrate pages of the fork server",
        "escape",
        'node = (ctypes.c_ulong * 1)(1)\ncall("migrate_pages", os.getppid(), 64, node, node)',
    ),
    _act(
        300,
        "typed text into a terminal",
        "escape",
        'import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSTI, b"x")',
        alone="nobody",
    ),
    _act(301, "a new pseudo terminal", "escape", "import os\nos.openpty()"),
    _act(302, "groups of processes and limits: cgroups", "escape", 'import os\nassert os.listdir("/sys/fs/cgroup")'),
    _act(303, "signals as a descriptor", "escape", 'os.close(call("signalfd4", -1, (ctypes.c_uint64 * 1)(), 8, 0))'),
    _act(
        304,
        "state of the page cache of a file",
        "escape",
        """
import numpy
file = os.open(numpy.__file__, os.O_RDONLY)
call("cachestat", file, (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)(), 0)
""",
        alone="root",
    ),
    _act(
        326,
        "look for a name, which the kernel remembers for the next program",
        "forgery",
        """
import os
os.stat("/")
""",
    ),
    _act(
        325,
        "read a page of a library, which the kernel keeps for the next program",
        "forgery",
        """
import os
os.pread(os.open(os.__file__, os.O_RDONLY), 1, 0)
""",
    ),
)


# Measured: every set of layers that can be left out was, in a sandbox of root's and in one of an ordinary user's; since
# then seccomp refuses paths, and stands beside all that needs one. The sets of the tests are measured in each run. What
# stands nowhere here is stopped by what cannot be left out (a clean environment, a fresh process that cannot be looked
# into), or needs more than that layers are absent.
_OPENS_WITHOUT = {
    "rlimits": "60 70 215",
    "seccomp": "41 50 56 58 98 132 138 163 170 171 172 179 180 186 192 193 194 195 196 197 199 203 204 205"
    " 207 208 209 226 227 266 267 268 274 276 279 280 281 282 283 290 291 295 296 303 320 326",
    "namespaces+seccomp": "36 175 176",
    "private-root+seccomp": "4 38 126 127 128 129 130 131 153 181",
    "uid+seccomp": "17 18 40 42 43 44 48 53 59 99 100 101 102 103 158 159 160 161 162 173 182 213 218 285 292 293 294"
    " 298 304",
    "landlock+seccomp": "35",
    "rlimits+seccomp": "17 42 43 44 48 53 55 59 71 155 182 213 216 218 225",
    "nested-landlock+seccomp": "49 184 187 188 189 190 321",
    "namespaces+landlock+seccomp": "34 174",
    "private-root+user+seccomp": "23 26 152",
    "private-root+landlock+seccomp": "1 2 3 13 20 21 22 27 29 37 46 93 94 95 123 124 125 133 134 139 140 142 143 144"
    " 145 146 147 148 149 151 154 156 157 164 166 167 168 206 301 302 325",
    "namespaces+uid+landlock+seccomp": "7",
    "namespaces+uid+nested-landlock+seccomp": "11",
    "private-root+user+landlock+seccomp": "304",
    "private-root+uid+landlock+seccomp": "6 121 122 141 287",
    "landlock+rlimits+seccomp": "284",
    "namespaces+uid+landlock+nested-landlock+seccomp": "9",
    "namespaces+landlock+nested-landlock+seccomp": "169",
    "private-root+landlock+rlimits+seccomp": "45 47 150 165 210 211 212",
    "namespaces+user+landlock+nested-landlock+seccomp": "122 183 185",
}
# Some need what a kernel may have been built or set up without, and signals to whoever is there need somebody there.
_UNSURE = (
    "17 18 29 37 58 99 133 138 145 150 151 153 158 159 160 163 164 172 175 176 177 179 186 218 266 267 268 274 276 279"
    " 280 281 282 283 284 287 290 291 295 302 304 321"
)


def _complete(attack: Attack) -> Attack:
    sets = [layers for layers, numbers in _OPENS_WITHOUT.items() if str(attack.number) in numbers.split()]
    opens_without = frozenset(frozenset(layers.split("+")) for layers in sets)
    return replace(attack, opens_without=opens_without, unsure=str(attack.number) in _UNSURE.split())


ATTACKS = tuple(map(_complete, (*_READ, *_WRITE, *_NETWORK, *_PROCESSES, *_RESOURCES, *_FORGERY, *_ESCAPE)))
