"""Python's half of check_ctypes.sh: python3 check_ctypes.py LIBRARY. Tensors go to NumPy and PyTorch by DLPack and come back,
without a copy, and everything is let go in the end. Ends with "N passed, N failed, N skipped"."""
import ctypes as C, sys

f, P, I = C.CDLL(sys.argv[1]), C.c_void_p, C.c_int64
passed = failed = skipped = 0


def check(good, what):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("FAILED ", what)


class Shape(C.Structure):
    _fields_ = [("ndim", C.c_int), ("dim", I * 8)]


def declare(library, name, result, *arguments):
    getattr(library, name).restype, getattr(library, name).argtypes = result, arguments


for name, result, arguments in [
        ("flux_from_with", P, (P, C.c_int, Shape)), ("flux_slice_step", P, (P, C.c_int, I, I, I)), ("flux_flip_with", P, (P, Shape)),
        ("flux_data", P, (P,)), ("flux_pointer", P, (P,)), ("flux_shape_of", Shape, (P,)), ("flux_dtype_of", C.c_int, (P,)),
        ("flux_dtype_size", C.c_size_t, (C.c_int,)), ("flux_error", C.c_char_p, ()), ("flux_to_dlpack", P, (P,)),
        ("flux_to_dlpack_versioned", P, (P,)), ("flux_from_dlpack", P, (P,)), ("flux_from_dlpack_versioned", P, (P,))]:
    declare(f, name, result, *arguments)
py = C.pythonapi
declare(py, "PyCapsule_New", C.py_object, P, C.c_char_p, P)
declare(py, "PyCapsule_GetPointer", P, C.py_object, C.c_char_p)
declare(py, "PyCapsule_GetName", C.c_char_p, C.py_object)
declare(py, "PyCapsule_SetName", C.c_int, C.py_object, C.c_char_p)
NAMES = [b"dltensor", b"dltensor_versioned", b"used_dltensor", b"used_dltensor_versioned"]      # capsules keep the addresses


class Given:
    """A tensor of ours as libraries ask for it."""

    def __init__(self, x, versioned):
        self.x, self.versioned = x, versioned

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        give = f.flux_to_dlpack_versioned if self.versioned else f.flux_to_dlpack
        return py.PyCapsule_New(give(self.x), NAMES[self.versioned], None)


def taken(array, **options):
    """A tensor of ours in the memory of an array."""
    capsule = array.__dlpack__(**options)
    versioned = py.PyCapsule_GetName(capsule) == NAMES[1]
    take = f.flux_from_dlpack_versioned if versioned else f.flux_from_dlpack
    x = take(py.PyCapsule_GetPointer(capsule, NAMES[versioned]))
    if x:
        py.PyCapsule_SetName(capsule, NAMES[2 + versioned])
    return x


def flipped(x, dim):
    return f.flux_flip_with(x, Shape(1, (I * 8)(dim)))


def bytes_of(x):
    s, n = f.flux_shape_of(x), f.flux_dtype_size(f.flux_dtype_of(x))
    for d in s.dim[:s.ndim]:
        n *= d
    return C.string_at(f.flux_data(x), n)


try:
    import numpy as np
except ImportError:
    skipped += 1
    print("skipped DLPack with NumPy: it is not installed; pip install numpy")
else:
    NUMPY = ["f4", "f8", "f2", None, "i4", "i8", "u1", "b1"]              # in the order of flux_dtype
    for versioned in (False, True) if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1) else (False,):
        for t, code in enumerate(NUMPY):
            if not code:
                continue
            f.flux_scope_open()
            want = np.arange(24).reshape(2, 3, 4).astype(code)          # [N, H, W]: ours is W x H x N, 4 x 3 x 2
            x = f.flux_from_with(want.ctypes.data, t, Shape(3, (I * 8)(4, 3, 2)))
            views = [(x, want), (f.flux_slice_step(x, 0, 1, 4, 2), want[:, :, 1::2]),
                     (f.flux_slice_step(x, 1, 1, 3, 1), want[:, 1:]), (flipped(x, 2), want[::-1])]
            kept = []
            for v, w in views:
                a = np.from_dlpack(Given(v, versioned))
                check(a.dtype == want.dtype and a.shape == w.shape and (a == w).all(), "numpy %s %s" % (code, w.shape))
                check(a.ctypes.data == f.flux_pointer(v) if w is want else True, "numpy %s: no copy" % code)
                check(not (versioned and a.flags.writeable), "read-only")
                kept.append((a, w))
            f.flux_scope_close()
            check(all((a == w).all() for a, w in kept), "numpy %s: it outlives its scope" % code)
            del a, kept
            f.flux_scope_open()
            for w in (want, want[:, ::2], want.T, want[::-1, :, 1:3], np.array(want[0, 0, 0]), want[:0], np.asfortranarray(want)):
                before = sys.getrefcount(w)
                f.flux_scope_open()
                x = taken(w, max_version=(1, 0)) if versioned else taken(w)
                s = f.flux_shape_of(x)
                check(list(s.dim[:s.ndim]) == list(w.shape[::-1]) and bytes_of(x) == w.tobytes(), "of numpy %s %s" % (code, w.strides))
                check(w.size == 0 or not w.flags.c_contiguous or f.flux_pointer(x) == w.ctypes.data, "of numpy: no copy")
                check(sys.getrefcount(w) > before, "the array is held")
                f.flux_scope_close()
                check(sys.getrefcount(w) == before, "the array is let go")
            f.flux_scope_close()
    f.flux_scope_open()
    unsaid = C.CFUNCTYPE(None, C.c_char_p, P)(lambda message, user: None)
    f.flux_on_error(unsaid, None)
    check(not taken(np.zeros(3, "c8")) and b"no dtype of DLPack's code 5" in f.flux_error(), "complex numbers are refused")
    f.flux_clear()
    f.flux_on_error(None, None)
    f.flux_scope_close()

try:
    import torch
except ImportError:
    skipped += 1
    print("skipped DLPack with PyTorch: it is not installed; pip install torch")
else:
    TORCH = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool]
    for t, dtype in enumerate(TORCH):
        f.flux_scope_open()
        want = torch.arange(24).reshape(2, 3, 4).to(dtype)
        x = f.flux_from_with(want.data_ptr(), t, Shape(3, (I * 8)(4, 3, 2)))
        for versioned in (False, True):
            try:
                a = torch.from_dlpack(Given(x, versioned))
            except RuntimeError:                                      # an older PyTorch knows one of them
                if not versioned:
                    raise
                continue
            check(a.dtype == dtype and torch.equal(a, want) and a.data_ptr() == f.flux_pointer(x), "torch %s" % dtype)
            b = torch.from_dlpack(Given(flipped(f.flux_slice_step(x, 0, 1, 4, 2), 1), versioned))
            check(torch.equal(b, want[:, :, 1::2].flip(1)), "torch %s, a view" % dtype)
        f.flux_scope_close()
        check(torch.equal(a, want), "torch %s: it outlives its scope" % dtype)
        f.flux_scope_open()
        for w in (want, want[:, ::2], want.permute(2, 0, 1), want[:, :1].expand(2, 3, 4)):
            x = taken(w)
            s = f.flux_shape_of(x)
            check(f.flux_dtype_of(x) == t and list(s.dim[:s.ndim]) == list(w.shape)[::-1] and
                  bytes_of(x) == bytes(w.contiguous().view(torch.uint8).flatten().tolist()), "of torch %s %s" % (dtype, w.stride()))
        f.flux_scope_close()

print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
sys.exit(failed > 0)
