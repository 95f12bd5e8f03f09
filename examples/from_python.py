"""flux.h from Python, by ctypes alone: a network learns the sine.
       cc -O2 -shared -fPIC -DFLUX_IMPLEMENTATION -x c flux.h -o libflux.so -lm
       python3 examples/from_python.py ./libflux.so
   A call with options is a function that takes them as a struct, in which 0 is left out; see OTHER LANGUAGES in flux.h."""
import ctypes as C, sys
from math import sin
f, P, I, S = C.CDLL(sys.argv[1]), C.c_void_p, C.c_int64, C.c_char_p

class Shape(C.Structure):
    _fields_ = [("ndim", C.c_int), ("dim", I * 8)]

class DenseOptions(C.Structure):          # flux_dense_opts
    _fields_ = [("_", C.c_char), ("inputs", I), ("outputs", I), ("activation", P), ("bias", C.c_int), ("init", P), ("weight", P), ("bias_tensor", P), ("marked", C.c_bool)]

def declare(name, result, *arguments):
    getattr(f, name).restype, getattr(f, name).argtypes = result, arguments

declare("flux_dense_with", P, DenseOptions)
declare("flux_chain_with", P, C.c_int, C.POINTER(P), S)
declare("flux_from_with", P, P, C.c_int, Shape)
declare("flux_setup_named", P, S, C.c_double, P)
declare("flux_call_layer", P, P, P)
declare("flux_expr_with", P, S, C.c_int, S, C.POINTER(P))
declare("flux_gradient_with", P, P, C.c_int, C.POINTER(P))
declare("flux_update", C.c_int, P, P, P)
declare("flux_item", C.c_double, P)
tensor = lambda xs, *dims: f.flux_from_with((C.c_float * len(xs))(*xs), 0, Shape(len(dims), (I * 8)(*dims)))       # 0: FLUX_F32

hidden, last = DenseOptions(inputs=1, outputs=32, activation=C.cast(f.flux_tanh, P)), DenseOptions(inputs=32, outputs=1)
model = f.flux_chain_with(2, (P * 2)(f.flux_dense_with(hidden), f.flux_dense_with(last)), None)
points = [i / 100 for i in range(-300, 300)]
x, y, opt = tensor(points, 1, 600), tensor([sin(p) for p in points], 1, 600), f.flux_setup_named(b"Adam", 0.01, model)
for step in range(1000):
    f.flux_scope_open()                   # what a step makes is freed at its end
    loss = f.flux_expr_with(b"mse(out, y)", 2, b"out, y", (P * 2)(f.flux_call_layer(model, x), y))
    f.flux_update(opt, model, f.flux_gradient_with(loss, 1, (P * 1)(model)))
    if step % 200 == 199: print("step %4d  loss %.6f" % (step + 1, f.flux_item(loss)))
    f.flux_scope_close()
sys.exit(f.flux_failed())
