"""Text at the beginning of programs that use the C library through ctypes."""

C_LIBRARY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def code():
    "A page of a library that all programs map."
    return ctypes.cast(libc.qsort, ctypes.c_void_p).value & ~4095
class Library(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("name", ctypes.c_char_p)]
def openblas():
    "The address of a large library, most of which nobody needs."
    found = []
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)
    def look(library, size, data):
        if b"openblas" in (library[0].name or b""): found.append(library[0].start)
        return 0
    libc.dl_iterate_phdr(look, None)
    return found[0] & ~0xFFFF
"""
