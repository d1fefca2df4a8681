"""The system calls that a program may make, and their numbers. Every call not named here fails with EPERM."""

from __future__ import annotations

import errno
from typing import NamedTuple

ALLOWED = frozenset(
    """
    brk close dup dup2 dup3 exit exit_group getcpu getcwd getegid geteuid getgid getpgrp getppid getrlimit gettimeofday
    getuid lseek munmap nanosleep poll ppoll pread64 preadv pselect6 read readv restart_syscall rt_sigaction
    rt_sigprocmask rt_sigreturn sched_yield select sigaltstack time times uname write writev
    """.split()  # noqa: SIM905 — as a list it would be a page
)
"""Computing, sleeping, ending."""

KILLED = frozenset(
    """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module execve execveat finit_module fsconfig
    fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp
    kexec_file_load kexec_load keyctl modify_ldt mount mount_setattr move_mount name_to_handle_at open_by_handle_at
    open_tree perf_event_open personality pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev
    ptrace quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday swapoff swapon
    syslog umount2 unshare userfaultfd
    """.split()  # noqa: SIM905 — as a list it would be a page
)
"""No program that fits a classifier makes these calls. The kernel kills it with SIGSYS, so the attempt is visible."""

ANSWERED = {
    "fstat": errno.EBADF,
    "ioctl": errno.ENOTTY,
    # Process ids would tell how many programs a worker has run.
    "getpid": 0,
    "gettid": 0,
    **dict.fromkeys(
        """
        clone3 close_range getrusage membarrier openat2 rseq set_robust_list sysinfo
        """.split(),  # noqa: SIM905
        errno.ENOSYS,
    ),
    **dict.fromkeys(
        """
        access faccessat faccessat2 getdents64 lstat newfstatat open openat readlink readlinkat stat statx
        """.split(),  # noqa: SIM905
        errno.ENOENT,
    ),
}
"""Calls that libraries try and can do without, and the error that each gets; 0 is success without an effect.

The kernel looks up no path: it remembers the names that were looked up and the parts of a file that were read, so one
program could leave a message for the next. Calls that read counters of the machine fail as well: free memory,
processes, page faults, the inode number of a pipe.
"""


ALL_BITS = 0xFFFFFFFF


class Check(NamedTuple):
    """A condition on one argument of a system call: its lower 32 bits, after a mask, have one of these values."""

    argument: int
    """Position of the argument, from 0."""
    values: tuple[int, ...]
    mask: int = ALL_BITS
    whole: bool = False
    """Whether the upper 32 bits must be 0 as well; for addresses, which the kernel reads in full."""


# Constants of the kernel's headers.
_SYSTEM_CLOCKS = 12
"""Clocks with ids from here on, or below 0, belong to processes."""
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 1030
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAIT_BITSET, _FUTEX_WAKE_BITSET = 0, 1, 9, 10
_FUTEX_PRIVATE_FLAG, _FUTEX_CLOCK_REALTIME = 128, 256
_GRND_NONBLOCK = 1
_MADV_DONTNEED, _MADV_FREE, _MADV_HUGEPAGE, _MADV_NOHUGEPAGE = 4, 8, 14, 15
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_STACK = 0x2, 0x10, 0x20, 0x4000, 0x20000
_MAP_FIXED_NOREPLACE = 0x100000
_MAP_NEEDED = _MAP_PRIVATE | _MAP_ANONYMOUS
_MAP_OPTIONAL = _MAP_FIXED | _MAP_NORESERVE | _MAP_STACK | _MAP_FIXED_NOREPLACE

_CLOCKS = (Check(0, tuple(range(_SYSTEM_CLOCKS))),)
_FUTEX_OPERATIONS = tuple(
    _FUTEX_PRIVATE_FLAG | operation for operation in (_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAIT_BITSET, _FUTEX_WAKE_BITSET)
)
_PROTECTION = Check(2, (0,), ALL_BITS & ~(_PROT_READ | _PROT_WRITE | _PROT_EXEC))

BY_ARGUMENT = {
    "clock_getres": _CLOCKS,
    "clock_gettime": _CLOCKS,
    "clock_nanosleep": _CLOCKS,
    # No locks, leases or signals.
    "fcntl": (Check(1, (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC)),),
    # Private memory only: a shared futex on a page of a library could be seen by other programs.
    "futex": (Check(1, _FUTEX_OPERATIONS, ALL_BITS & ~_FUTEX_CLOCK_REALTIME),),
    # Not GRND_RANDOM: on older kernels, all processes share its pool.
    "getrandom": (Check(2, (0, _GRND_NONBLOCK)),),
    # Other kinds of advice evict pages of libraries, which the next program could measure.
    "madvise": (Check(2, (_MADV_DONTNEED, _MADV_FREE, _MADV_HUGEPAGE, _MADV_NOHUGEPAGE)),),
    # Private memory only, and not MAP_HUGETLB: all processes share the machine's huge pages.
    "mmap": (_PROTECTION, Check(3, (_MAP_NEEDED,), ALL_BITS & ~_MAP_OPTIONAL)),
    "mprotect": (_PROTECTION,),
    "mremap": (Check(3, (0, _MREMAP_MAYMOVE, _MREMAP_MAYMOVE | _MREMAP_FIXED)),),
    # Process 0, which is the caller, and no new limit.
    "prlimit64": (Check(0, (0,), whole=True), Check(2, (0,), whole=True)),
    # Process 0: with another id, the call would tell whether that process exists.
    "sched_getaffinity": (Check(0, (0,)),),
}
"""Calls that depend on their arguments: every check must hold, or the call fails with EPERM."""

_NUMBERS = {
    "x86_64": """
access=21 acct=163 add_key=248 adjtimex=159 bpf=321 brk=12 chroot=161 clock_adjtime=305 clock_getres=229
clock_gettime=228 clock_nanosleep=230 clock_settime=227 clone3=435 close=3 close_range=436 delete_module=176 dup2=33
dup3=292 dup=32 execve=59 execveat=322 exit=60 exit_group=231 faccessat2=439 faccessat=269 fcntl=72 finit_module=313
fsconfig=431 fsmount=432 fsopen=430 fspick=433 fstat=5 futex=202 getcpu=309 getcwd=79 getdents64=217 getegid=108
geteuid=107 getgid=104 getpgrp=111 getpid=39 getppid=110 getrandom=318 getrlimit=97 getrusage=98 gettid=186
gettimeofday=96 getuid=102 init_module=175 io_uring_enter=426 io_uring_register=427 io_uring_setup=425 ioctl=16
ioperm=173 iopl=172 kcmp=312 kexec_file_load=320 kexec_load=246 keyctl=250 lseek=8 lstat=6 madvise=28 membarrier=324
mmap=9 modify_ldt=154 mount=165 mount_setattr=442 move_mount=429 mprotect=10 mremap=25 munmap=11
name_to_handle_at=303 nanosleep=35 newfstatat=262 open=2 open_by_handle_at=304 open_tree=428 openat2=437 openat=257
perf_event_open=298 personality=135 pidfd_getfd=438 pivot_root=155 poll=7 ppoll=271 pread64=17
preadv=295 prlimit64=302 process_madvise=440 process_vm_readv=310 process_vm_writev=311 pselect6=270 ptrace=101
quotactl=179 quotactl_fd=443 read=0 readlink=89 readlinkat=267 readv=19 reboot=169 request_key=249
restart_syscall=219 rseq=334 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 sched_getaffinity=204 sched_yield=24
select=23 set_robust_list=273 setdomainname=171 sethostname=170 setns=308 settimeofday=164 sigaltstack=131 stat=4
statx=332 swapoff=168 swapon=167 sysinfo=99 syslog=103 time=201 times=100 umount2=166 uname=63 unshare=272
userfaultfd=323 write=1 writev=20
""",
    "aarch64": """
acct=89 add_key=217 adjtimex=171 bpf=280 brk=214 chroot=51 clock_adjtime=266 clock_getres=114 clock_gettime=113
clock_nanosleep=115 clock_settime=112 clone3=435 close=57 close_range=436 delete_module=106 dup3=24 dup=23
execve=221 execveat=281 exit=93 exit_group=94 faccessat2=439 faccessat=48 fcntl=25 finit_module=273 fsconfig=431
fsmount=432 fsopen=430 fspick=433 fstat=80 futex=98 getcpu=168 getcwd=17 getdents64=61 getegid=177 geteuid=175
getgid=176 getpid=172 getppid=173 getrandom=278 getrlimit=163 getrusage=165 gettid=178 gettimeofday=169 getuid=174
init_module=105 io_uring_enter=426 io_uring_register=427 io_uring_setup=425 ioctl=29 kcmp=272 kexec_file_load=294
kexec_load=104 keyctl=219 lseek=62 madvise=233 membarrier=283 mmap=222 mount=40 mount_setattr=442 move_mount=429
mprotect=226 mremap=216 munmap=215 name_to_handle_at=264 nanosleep=101 newfstatat=79 open_by_handle_at=265
open_tree=428 openat2=437 openat=56 perf_event_open=241 personality=92 pidfd_getfd=438 pivot_root=41
ppoll=73 pread64=67 preadv=69 prlimit64=261 process_madvise=440 process_vm_readv=270 process_vm_writev=271
pselect6=72 ptrace=117 quotactl=60 quotactl_fd=443 read=63 readlinkat=78 readv=65 reboot=142 request_key=218
restart_syscall=128 rseq=293 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 sched_getaffinity=123
sched_yield=124 set_robust_list=99 setdomainname=162 sethostname=161 setns=268 settimeofday=170 sigaltstack=132
statx=291 swapoff=225 swapon=224 sysinfo=179 syslog=116 times=153 umount2=39 uname=160 unshare=97 userfaultfd=282
write=64 writev=66
""",
}


def numbers(machine: str) -> dict[str, int]:
    """Return the number of each system call named here on that kind of machine; empty where none are known."""
    pairs = (pair.split("=") for pair in _NUMBERS.get(machine, "").split())
    return {name: int(number) for name, number in pairs}
