"""A simulated accelerator, "sim": tests of device placement for machines that have none.

    start()                                          # once a process, before any use
    model.to("sim:1"); x.to("sim:1"); torch.Generator("sim"); torch.accelerator.synchronize()

A tensor on "sim" holds a CPU tensor that nobody else can reach, so an operator that mixes devices
raises, as on CUDA, and the arithmetic has the CPU's bits. torch takes it for an accelerator
(PrivateUse1): nn.Dropout becomes the fused native_dropout, which takes no generator; a device has a
default generator of its own; backward runs on autograd's thread of that device.

With a C++ compiler (device.cpp, built once) there are two devices, generators, pinned memory,
streams and events; without one, "sim:0" and none of these. Not simulated: asynchrony, speed, memory
limits, cuDNN, fused attention, CUDA graphs, NCCL, torch.compile.
"""

import threading
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import torch
from torch._decomp import decompositions
from torch.utils import _pytree as pytree
from torch.utils import backend_registration as registration

__all__ = ["SimTensor", "operators", "start"]

aten = torch.ops.aten
UNSENT = {"c10d::send", "c10d::recv_", "c10d::recv_any_source_"}  # gloo takes no CUDA tensor there
MOVES = {aten.copy_, aten._to_copy, aten._foreach_copy_, aten.set_}
# on CUDA, too, these take whole numbers from the CPU: indices and lengths
CPU_INDICES = {
    aten.index,
    aten.index_put,
    aten.index_put_,
    aten._index_put_impl_,
    aten._pack_padded_sequence,
    aten._pad_packed_sequence,
}
ATTENTION = "scaled_dot_product_attention"
LOWER = ("linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", ATTENTION)
FLOAT32 = ("layer_norm", "mse_loss", "nll_loss", "softmax.int", "log_softmax.int")
FLOAT32 += ("cross_entropy_loss", "cosine_similarity", "linalg_vector_norm")
RECURRENT = {
    "lstm.input": decompositions.lstm_impl,
    "lstm.data": decompositions.lstm_data_impl,
    "gru.input": decompositions.gru_impl,
    "gru.data": decompositions.gru_impl_data,
}
operators = Counter()  # what ran on sim, by name: how often a step reads a number back, say
_lock = threading.RLock()
_library = []  # registrations live as long as these
_default = []  # a device's own generators


def start(compiler=True):
    """Make "sim" known to torch, once a process; return the number of devices."""
    if _library:
        return len(_default)
    torch.utils.rename_privateuse1_backend("sim")
    registration.generate_methods_for_privateuse1_backend()
    torch._register_device_module("sim", sim)
    if compiler and _built():
        _default.extend(torch.Generator(f"sim:{i}") for i in range(2))
    else:
        torch._C._acc.register_python_privateuseone_hook(registration._DummyPrivateUse1Hook())
        guard = registration._DummyDeviceGuard()
        torch._C._acc.register_python_privateuseone_device_guard(guard)
        _default.append(torch.Generator())
    _register()
    torch.serialization.register_package(5, lambda s: getattr(s, "sim_device", None), _mark)
    torch.serialization.add_safe_globals([_rebuild])
    torch.__future__.set_swap_module_params_on_conversion(True)  # module.to keeps its Parameters
    torch.nn.Module.load_state_dict = _copying(torch.nn.Module.load_state_dict)
    return len(_default)


def _copying(load):
    """Let load_state_dict copy, as on CUDA: nn.LSTM's parameters, of which it keeps references,
    cannot be swapped."""

    def copying(self, *args, **kwargs):
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            return load(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    return copying


def _register():
    own = torch.library.Library("aten", "IMPL")
    own.impl("empty.memory_format", _empty, "PrivateUse1")
    own.impl("empty_strided", _empty_strided, "PrivateUse1")
    # torch.tensor(..., device="sim") comes here past SimTensor's dispatch
    own.impl("_copy_from", _copy_from, "PrivateUse1")
    for name, written_out in RECURRENT.items():
        own.impl(name, written_out, "AutogradPrivateUse1")
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in LOWER + FLOAT32:
        own.impl(name, _autocast(name), "AutocastPrivateUse1")
    _library.extend([own, rest])


def _built():
    from torch.utils import cpp_extension

    with suppress(RuntimeError, OSError):  # no compiler
        source = str(Path(__file__).with_suffix(".cpp"))
        cpp_extension.load("sim_device_cpp", source, is_python_module=False, extra_cflags=["-O0"])
        return True
    return False


class sim:
    """What `torch.sim` offers, as `torch.cuda` does."""

    @staticmethod
    def is_available():
        return True

    is_initialized = is_available

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def device_count():
        return len(_default)

    @staticmethod
    def current_device():
        return torch.accelerator.current_device_index()

    @staticmethod
    def get_amp_supported_dtype():
        return [torch.bfloat16, torch.float16]

    @staticmethod
    def manual_seed_all(seed):
        for generator in _default:
            generator.manual_seed(seed)

    @staticmethod
    def get_rng_state(device="sim"):
        return _default[_index(device)].get_state()

    @staticmethod
    def set_rng_state(state, device="sim"):
        _default[_index(device)].set_state(state)


class SimTensor(torch.Tensor):
    """A tensor on "sim"; `raw` is its memory, a CPU tensor."""

    raw: torch.Tensor
    seen: ClassVar[Counter] = operators

    @staticmethod
    def __new__(cls, raw, device):
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, **layout, dtype=raw.dtype, device=device
        )
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return _run(op, args, kwargs or {})

    def __repr__(self, **_):
        return f"{self.raw!r}"[:-1] + f", device='{self.device}')"

    def tolist(self):
        return self.raw.tolist()

    def untyped_storage(self):
        return self.raw.untyped_storage()

    def numpy(self, *, force=False):
        if not force:
            raise TypeError(f"can't convert a tensor on {self.device} to numpy: use Tensor.cpu()")
        return self.raw.numpy()

    def _set_data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.raw = other.raw

    data = property(torch.Tensor.data.__get__, _set_data)

    def __reduce_ex__(self, protocol):
        """Save as a storage that names its device, so that torch.load's map_location counts."""
        storage = self.raw.untyped_storage()
        storage.sim_device = str(self.device)
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=self.dtype, _internal=True)
        layout = self.raw.storage_offset(), tuple(self.shape), self.raw.stride()
        return _rebuild, (typed, *layout, self.requires_grad, getattr(self, "_is_param", False))


def _mark(storage, location):
    storage.sim_device = location
    return storage if location.startswith("sim") else None


def _rebuild(typed, offset, size, stride, requires_grad, is_parameter):
    storage = typed._untyped_storage
    tensor = torch.empty(0, dtype=typed.dtype).set_(storage, offset, size, stride)
    if (where := getattr(storage, "sim_device", "")).startswith("sim"):
        tensor = SimTensor(tensor, torch.device("sim", _index(where)))
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _index(device):
    index = device if isinstance(device, int) else torch.device(device or "sim").index
    index = torch.accelerator.current_device_index() if index is None or index < 0 else index
    if index >= len(_default):
        raise RuntimeError(f"sim: invalid device ordinal {index}")
    return index


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    memory_format = memory_format or torch.contiguous_format
    raw = torch.empty(size, dtype=dtype, memory_format=memory_format, device="cpu")
    return SimTensor(raw, torch.device("sim", _index(device)))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    raw = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    return SimTensor(raw, torch.device("sim", _index(device)))


def _copy_from(source, target, non_blocking=False):
    return _run(aten.copy_.default, (target, source), {})


def _run(op, args, kwargs):
    """Run an operator on the raw tensors, after the checks that an accelerator makes."""
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    sims = [x for x in tensors if isinstance(x, SimTensor)]
    _check_devices(op, args, kwargs, tensors, {x.device for x in sims})
    if op._schema.name in UNSENT:
        raise RuntimeError(f"{op}: tensors on sim cannot be sent or received point to point")
    operators[op._schema.name] += 1
    target = torch.device(kwargs.get("device") or sims[0].device)
    own = {id(x.raw): x for x in sims}
    with torch._C._DisableAutocast(), _generator(op, kwargs, sims) as drawn:
        out = op(*pytree.tree_map(_raw, args), **pytree.tree_map(_raw, kwargs | drawn))
    for x in sims if op._schema.is_mutable else ():
        if (x.shape, x.stride()) != (x.raw.shape, x.raw.stride()):  # resized, or transposed
            torch.Tensor.data.__set__(x, SimTensor(x.raw, x.device))
    if op.overloadpacket is aten.copy_:
        return args[0]
    if target.type != "sim":
        operators["to host"] += 1
        return out
    target = torch.device("sim", _index(target))
    if op.overloadpacket is aten._pack_padded_sequence:  # its lengths stay on the CPU
        return SimTensor(out[0], target), out[1]

    def wrap(x):
        if id(x) in own:
            return own[id(x)]
        return SimTensor(x, target) if isinstance(x, torch.Tensor) else x

    return pytree.tree_map(wrap, out)


def _raw(x):
    on_sim = isinstance(x, torch.device) and x.type == "sim"
    return torch.device("cpu") if on_sim else x.raw if isinstance(x, SimTensor) else x


def _check_devices(op, args, kwargs, tensors, devices):
    """Numbers (0-dimensional CPU tensors) may be read beside a device's tensors; nothing else."""
    if op.overloadpacket in MOVES or not devices:
        return
    other = [x for x in tensors if not isinstance(x, SimTensor)]
    if op.overloadpacket in CPU_INDICES:
        other = [x for x in other if x.is_floating_point()]
    written = [kwargs.get("out"), args[0] if op._schema.is_mutable and args else None]
    bad = [x for x in other if x.dim() > 0 or any(x is w for w in written)]
    if bad or len(devices) > 1:
        found = ", ".join(sorted({str(d) for d in devices} | {str(x.device) for x in bad}))
        raise RuntimeError(f"Expected all tensors to be on the same device, found {found} ({op})")


@contextmanager
def _generator(op, kwargs, sims):
    """Let a random operator draw from the generator given, else from its device's own."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        yield {}
        return
    device = sims[0].device if sims else torch.device("sim", _index(kwargs["device"]))
    given = kwargs.get("generator") or _default[device.index]
    if len(_default) > 1 and given.device != device:
        raise RuntimeError(f"Expected a '{device}' generator but found '{given.device}'")
    with _lock:
        if any(a.name == "generator" for a in op._schema.arguments):
            twin = torch.Generator().set_state(given.get_state())
            yield {"generator": twin}
            given.set_state(twin.get_state())
        else:  # native_dropout and its like: lend them the CPU's default generator
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(given.get_state())
                yield {}
                given.set_state(torch.get_rng_state())


def _autocast(name):
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(x):
        fits = isinstance(x, SimTensor) and x.is_floating_point() and x.dtype != torch.float64
        if not fits:
            return x
        return x.to(torch.float32 if name in FLOAT32 else torch.get_autocast_dtype("sim"))

    def kernel(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(off):
            return op(*pytree.tree_map(cast, args), **pytree.tree_map(cast, kwargs))

    return kernel
